#include "viewer/model/tiles.hpp"
