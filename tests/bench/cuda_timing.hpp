#pragma once

#include "sim/compute.hpp"
#include "tests/bench/cuda_sections.hpp"
#include "tests/bench/cuda_work.hpp"
#include "tests/bench/host_numbers.hpp"

#include <deque>
#include <functional>
#include <string>
#include <vector>

// What the benchmark's parts share: inputs, the ways to compute, medians.

namespace kvreplay::bench {

struct Way {
  Input input;
  Products products;
};
double element_bytes(Input input);
std::string name_of(Input input);
std::string name_of(Products products);
Quality quality_of(Products products);

/// Calls body for each; where device memory does not suffice the table says so.
void for_each_way(Bench& bench, const std::function<void(Way)>& body);

/// Normal queries (of deviation 2), keys and values; only the rows have queries.
HeadGroup<float> normal_group(const PassShape& shape, unsigned seed);
inline RowRange rows_of(const PassShape& shape) { return {shape.l - shape.w, shape.l}; }

/// A group's keys and values on a device, and what is made of them.
struct OnDevice {
  OnDevice(const HeadGroup<float>& of, const cuda::StoredNumbers& stored, Products products,
           const cuda::Stream& stream)
      : keys(stored.k, stored.type, of.T_all(), of.d(), stream),
        values(stored.v, stored.type, of.T_all(), of.d_v(), stream),
        centred(values, of.T_all(), of.d_v(), stream),
        group(of, keys, &centred, products, stream) {}
  cuda::DeviceRows keys, values;
  cuda::CentredValues centred;
  DeviceGroup group;
};

/// The same inputs in several places of device memory, more than twice L2 together: none of them is found
/// there.
class Copies {
 public:
  Copies(const Bench& bench, const PassShape& shape, const HeadGroup<float>& group, Way way,
         const cuda::Stream& stream);
  const std::deque<ColumnRun>& runs() const { return runs_; }

 private:
  std::deque<OnDevice> groups_;
  std::deque<ColumnRun> runs_;
};

double median(std::vector<double> numbers);
/// Median seconds of one launch, of samples that go through all copies once.
double median_seconds(const Bench& bench, const Copies& copies, const cuda::Stream& stream,
                      void (ColumnRun::*launch)() const);

}  // namespace kvreplay::bench
