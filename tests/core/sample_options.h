#pragma once

#include <tessera/core/options.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::testing {

enum class Shape { kRing = 3, kTree = 7 };

struct RetryOptions {
  TESSERA_ARG(int, attempts) = 3;
  TESSERA_ARG(std::chrono::milliseconds, pause) = std::chrono::milliseconds(250);

 public:
  static const FieldList<RetryOptions>& fields() {
    static const auto list = FieldList<RetryOptions>("retry")
                                 .add("attempts", &RetryOptions::attempts_, "how often to try")
                                 .add("pause", &RetryOptions::pause_, "how long to wait between two tries");
    return list;
  }
};

struct LinkOptions {
  TESSERA_ARG(std::string, backend) = "auto";
  TESSERA_ARG(std::string, strategy) = "ring";
  TESSERA_ARG(std::chrono::milliseconds, timeout) = std::chrono::seconds(30);
  TESSERA_ARG(RetryOptions, retry) = RetryOptions();

 public:
  static const FieldList<LinkOptions>& fields() {
    static const auto list = FieldList<LinkOptions>("link")
                                 .add("backend", &LinkOptions::backend_, "who moves the bytes")
                                 .section("retry", &LinkOptions::retry_, RetryOptions::fields())
                                 .add_choice("strategy", &LinkOptions::strategy_, {"ring", "tree"}, "ring | tree")
                                 .add("timeout", &LinkOptions::timeout_, "how long a call may take");
    return list;
  }
};

/// One field of every type, and sections two deep.
struct SampleOptions {
  TESSERA_ARG(LinkOptions, world) = LinkOptions().backend("gloo");
  TESSERA_ARG(bool, overlap) = true;
  TESSERA_ARG(int, num_steps) = 100;
  TESSERA_ARG(std::int64_t, bucket_bytes) = 25'000'000;
  TESSERA_ARG(double, rate) = 0.5;
  TESSERA_ARG(std::string, name) = "";
  TESSERA_ARG(std::chrono::milliseconds, wait) = std::chrono::minutes(2);
  TESSERA_ARG(std::vector<std::string>, axes) = { "dp", "tp" };
  TESSERA_ARG(std::vector<std::int64_t>, sizes) = {};
  TESSERA_ARG(Shape, shape) = Shape::kTree;

 public:
  static const FieldList<SampleOptions>& fields() {
    static const auto list =
        FieldList<SampleOptions>("sample")
            .section("world", &SampleOptions::world_, LinkOptions::fields())
            .add("overlap", &SampleOptions::overlap_, "overlap with backward")
            .add("num_steps", &SampleOptions::num_steps_, "steps to train")
            .add("bucket_bytes", &SampleOptions::bucket_bytes_, "size of a bucket")
            .add("rate", &SampleOptions::rate_, "a rate")
            .add("name", &SampleOptions::name_, "a name")
            .add("wait", &SampleOptions::wait_, "a wait")
            .add("axes", &SampleOptions::axes_, "names of axes")
            .add("sizes", &SampleOptions::sizes_, "sizes of axes")
            .add_enum("shape", &SampleOptions::shape_, {{"ring", Shape::kRing}, {"tree", Shape::kTree}}, "a shape");
    return list;
  }
};

/// Every field as text: equal for equal options.
inline std::vector<std::string> texts_of(const SampleOptions& options) {
  std::vector<std::string> texts;
  for (const Field& field : SampleOptions::fields().fields()) {
    texts.push_back(field.key + "=" + SampleOptions::fields().get_text(options, field.key));
  }
  return texts;
}

}  // namespace tessera::testing
