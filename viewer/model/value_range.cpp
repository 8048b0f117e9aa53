#include "viewer/model/value_range.hpp"
