// How long a dump's prompt is, and how many decoding steps follow.
#include <kvreplay/data/dump.hpp>

#include <cstdio>

int main(int, char** argv) {
  const kvreplay::DumpShape shape = kvreplay::Dump::open(argv[1]).shape();
  std::printf("%td candidates, %td decoding steps\n", shape.l, shape.T - shape.l);
}
