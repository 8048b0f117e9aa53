#include "viewer/model/heatmap_image.hpp"
