#include "data/synth.hpp"
