#include "viewer/model/token_text.hpp"
