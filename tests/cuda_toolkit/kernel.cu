__global__ void kernel(int* at) { *at = 1; }
