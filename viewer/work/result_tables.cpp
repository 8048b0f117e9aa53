#include "viewer/work/result_tables.hpp"
