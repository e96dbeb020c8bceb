#include "gpt/contest.h"

#include <tessera/comm/make_observer.h>
#include <tessera/core/error.h>

#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace bench {
namespace {

constexpr const char* kTrace = "trace:";

class Rank {
 public:
  Rank(const std::string& backend, const GptShape& shape, MakeTrainer make)
      : shape_(shape),
        make_(std::move(make)),
        world_(tessera::init(tessera::WorldOptions().backend(backend).timeout(std::chrono::seconds(120)))) {}

  void answer(const std::string& variant, int num_steps) {
    if (variant == "start") {
      world_.comm().barrier();
      say(variant, 0, 0);
      return;
    }
    const bool is_traced = variant.starts_with(kTrace);
    Trainer& trainer = trainer_of(is_traced ? "fsdp" : variant);
    std::unique_ptr<tessera::observe::Observer> observer;
    if (is_traced) observer = make_observer(variant.substr(std::string(kTrace).size()));
    world_.comm().barrier();
    const auto began = std::chrono::steady_clock::now();
    double loss = 0;
    for (int i = 1; i <= num_steps; ++i) {
      loss = trainer.step(observer.get());
      if (observer) observer->record({.step = i, .loss = loss});
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    if (observer) observer->close();
    if (!std::isfinite(loss)) throw tessera::InternalError(variant + ": the loss is " + std::to_string(loss));
    say(variant, seconds.count(), loss);
  }

  void finish() { world_.comm().barrier(); }

 private:
  static void say(const std::string& variant, double seconds, double loss) {
    std::printf("{\"variant\": \"%s\", \"seconds\": %.6f, \"loss\": %.9g}\n", variant.c_str(), seconds, loss);
    std::fflush(stdout);
  }

  Trainer& trainer_of(const std::string& kind) {
    auto& trainer = trainers_[kind];
    if (!trainer) trainer = make_(kind, world_, shape_);
    return *trainer;
  }

  std::unique_ptr<tessera::observe::Observer> make_observer(const std::string& folder) const {
    return tessera::make_observer(world_, tessera::ObserveOptions().progress("off").trace(folder + "/trace"));
  }

  GptShape shape_;
  MakeTrainer make_;
  tessera::World world_;
  std::map<std::string, std::unique_ptr<Trainer>> trainers_;
};

void run(const std::string& backend, const GptShape& shape, const MakeTrainer& make) {
  at::set_num_threads(1);
  Rank rank(backend, shape, make);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string variant;
    int num_steps = 0;
    if (!(words >> variant >> num_steps)) {
      throw tessera::ConfigError("expected KIND STEPS, found \"" + line + "\"");
    }
    rank.answer(variant, num_steps);
  }
  rank.finish();
}

GptShape shape_of(const std::vector<std::string>& words) {
  GptShape shape;
  const std::vector<std::int64_t*> numbers{&shape.layers,     &shape.width,    &shape.heads,
                                           &shape.vocabulary, &shape.sequence, &shape.batch};
  for (std::size_t i = 0; i < words.size(); ++i) *numbers.at(i) = std::stoll(words[i]);
  return shape;
}

}  // namespace

int answer_lines(int argc, char** argv, const MakeTrainer& make) {
  if (argc != 2 && argc != 8) {
    std::fprintf(stderr, "usage: %s BACKEND [LAYERS WIDTH HEADS VOCABULARY SEQUENCE BATCH]\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1], shape_of({argv + 2, argv + argc}), make);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}

}  // namespace bench
