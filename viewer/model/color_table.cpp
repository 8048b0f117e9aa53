#include "viewer/model/color_table.hpp"
