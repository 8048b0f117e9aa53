#include "viewer/model/selection.hpp"
