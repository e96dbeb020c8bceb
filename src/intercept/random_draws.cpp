#include <tessera/intercept/random_draws.h>

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>

namespace tessera::intercept {
namespace {

constexpr std::array<std::string_view, 22> kOperators{"aten::_sample_dirichlet",
                                                      "aten::_standard_gamma",
                                                      "aten::bernoulli",
                                                      "aten::bernoulli_",
                                                      "aten::binomial",
                                                      "aten::cauchy_",
                                                      "aten::exponential_",
                                                      "aten::geometric_",
                                                      "aten::log_normal_",
                                                      "aten::multinomial",
                                                      "aten::native_dropout",
                                                      "aten::normal",
                                                      "aten::normal_",
                                                      "aten::poisson",
                                                      "aten::rand",
                                                      "aten::randint",
                                                      "aten::randn",
                                                      "aten::random_",
                                                      "aten::randperm",
                                                      "aten::rrelu_with_noise",
                                                      "aten::rrelu_with_noise_",
                                                      "aten::uniform_"};
static_assert(std::is_sorted(kOperators.begin(), kOperators.end()));

/// The counts of one thread. Thread-local because LibTorch's callbacks are plain functions without a context.
struct Draws {
  std::uint64_t count = 0;
  int num_listeners = 0;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};
thread_local Draws draws;

std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction& function) {
  if (draws_random_numbers(function.name())) ++draws.count;
  return nullptr;
}

}  // namespace

bool draws_random_numbers(std::string_view operator_name) {
  return std::binary_search(kOperators.begin(), kOperators.end(), operator_name);
}

RandomDraws::RandomDraws() : before_(draws.count) {
  if (draws.num_listeners++ > 0) return;
  draws.callback =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&before_operator).scopes({at::RecordScope::FUNCTION}));
}

RandomDraws::~RandomDraws() {
  if (--draws.num_listeners == 0) at::removeCallback(draws.callback);
}

bool RandomDraws::any() const { return draws.count != before_; }

}  // namespace tessera::intercept
