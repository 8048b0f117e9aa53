#include "viewer/work/desk.hpp"
