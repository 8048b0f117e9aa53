#include "viewer/model/panel_kind.hpp"
