#include "viewer/model/value_scale.hpp"
