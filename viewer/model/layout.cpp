#include "viewer/model/layout.hpp"
