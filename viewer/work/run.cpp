#include "viewer/work/run.hpp"
