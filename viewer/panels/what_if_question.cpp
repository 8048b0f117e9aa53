#include "viewer/panels/questions.hpp"
