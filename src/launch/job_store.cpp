#include "launch/job_store.h"

#include <tessera/core/error.h>
#include <tessera/store/client.h>

#include <chrono>
#include <utility>

namespace tessera::launch {
namespace {

constexpr auto kReady = std::future_status::ready;

}  // namespace

JobStore::JobStore(std::string address, int port, const store::Secret& secret)
    : address_(std::move(address)), secret_(secret), server_(address_, port, secret) {}

void JobStore::forget(int generation) {
  static constexpr std::chrono::seconds kPatience{5};
  // Those that are over: taking one away that is not would wait for it.
  std::erase_if(forgetting_, [](const auto& one) { return one.wait_for(std::chrono::seconds(0)) == kReady; });
  forgetting_.push_back(std::async(std::launch::async, [this, generation] {
    try {
      auto client = store::StoreClient::connect(address_, port(), secret_, kPatience);
      client.delete_prefix("tessera/" + std::to_string(generation) + "/");
    } catch (const Error&) {
      return;  // the keys only take room: no later generation reads them
    }
  }));
}

std::string endpoint_text(const std::string& host, int port) {
  const bool needs_brackets = host.find(':') != std::string::npos;
  return (needs_brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace tessera::launch
