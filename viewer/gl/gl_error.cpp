#include "viewer/gl/gl_error.hpp"
