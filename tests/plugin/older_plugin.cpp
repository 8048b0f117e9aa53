// A plug-in of another version: nothing but the first member is the same in all.

extern "C" const char* const kvreplay_cuda_plugin[];
extern "C" const char* const kvreplay_cuda_plugin[] = {"kvreplay 0.0.1", nullptr};
