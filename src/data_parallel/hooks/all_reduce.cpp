#include <tessera/core/error.h>
#include <tessera/data_parallel/gradient_hooks.h>

#include "data_parallel/hooks/average.h"

namespace tessera {
namespace {

class AllReduceHook : public GradientHook {
 public:
  std::string name() const override { return "none"; }

  // Where the cores add up, they divide while the values are in their registers.
  bool takes_divided(const Communicator& comm) const override {
    return comm.backend() != "shm" && comm.backend() != "threads";
  }

  Finish start(const GradientBucket& bucket, const Communicator& comm) override {
    count(bucket.flat);
    return data_parallel::start_average(bucket.flat, bucket.divisor, comm);
  }
};

}  // namespace

std::shared_ptr<GradientHook> all_reduce_hook() { return std::make_shared<AllReduceHook>(); }

std::shared_ptr<GradientHook> make_gradient_hook(const std::string& compression) {
  if (compression == "none") return all_reduce_hook();
  if (compression == "fp16") return fp16_hook();
  if (compression == "bf16") return bf16_hook();
  if (compression == "int8") return int8_hook();
  if (compression == "powersgd") return power_sgd_hook();
  throw ConfigError("there is no gradient compression \"" + compression +
                    "\"; choose none, fp16, bf16, int8 or powersgd, or write a hook of your own "
                    "(docs/guides/gradient_hooks.md)");
}

}  // namespace tessera
