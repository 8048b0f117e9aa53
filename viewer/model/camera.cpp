#include "viewer/model/camera.hpp"
