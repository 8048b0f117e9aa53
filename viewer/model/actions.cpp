#include "viewer/model/actions.hpp"
