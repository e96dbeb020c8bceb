// A rank that uses what the launcher gives it: `meet` the others in the store, or `record` calls and die in them.
#include <tessera/flight/recorder.h>
#include <tessera/store/client.h>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}
int number(const char* name) { return std::stoi(variable(name)); }

tessera::store::StoreClient connect() {
  const std::string place = variable("TESSERA_STORE");
  const auto colon = place.rfind(':');
  return tessera::store::StoreClient::connect(place.substr(0, colon), std::stoi(place.substr(colon + 1)),
                                              tessera::store::Secret::from_hex(variable("TESSERA_SECRET")),
                                              std::chrono::seconds(10));
}

/// Writes down its place, meets all others, and counts the keys that earlier generations left.
int meet(const std::string& failing_generation) {
  auto client = connect();
  const std::string generation = variable("TORCHELASTIC_RESTART_COUNT");
  const std::string prefix = "tessera/" + generation + "/";
  client.set(prefix + variable("RANK"), variable("MASTER_PORT"));
  std::vector<std::string> keys;
  for (int rank = 0; rank < number("WORLD_SIZE"); ++rank) keys.push_back(prefix + std::to_string(rank));
  const auto ports = client.multi_get(keys, std::chrono::seconds(20));
  std::printf("met %zu, port %s\n", ports.size(), ports[0] == variable("MASTER_PORT") ? "agreed" : "unknown");
  std::fflush(stdout);
  if (generation == failing_generation) return number("RANK") == 0 ? 7 : 0;
  if (generation == "0") return 0;
  // The launcher deletes while the next generation starts.
  bool left = true;
  for (int i = 0; i < 500 && left; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    left = client.check({"tessera/0/0"});
  }
  std::printf("left of generation 0: %d\n", left ? 1 : 0);
  return 0;
}

void touch(const std::string& name) { std::ofstream(variable("MEETING_FOLDER") + "/" + name) << "here"; }
void await(const std::string& name) {
  while (!std::filesystem::exists(variable("MEETING_FOLDER") + "/" + name)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// All ranks do call 1; then `victim` ends while the others wait for it in call 2.
int record(int victim, const std::string& how) {
  const int rank = number("RANK");
  const int world_size = number("WORLD_SIZE");
  tessera::flight::Recorder recorder(variable("TESSERA_BLACK_BOX"));
  recorder.introduce(rank, world_size);
  std::vector<int> all(static_cast<std::size_t>(world_size));
  std::iota(all.begin(), all.end(), 0);
  tessera::flight::CallStart call;
  call.group = recorder.add_group("world", all);
  call.operation = "all_reduce";
  call.dtype = "Float";
  call.sequence = 1;
  call.where = std::source_location::current();
  recorder.end(recorder.begin(call), false);
  const std::string generation = "_" + variable("TORCHELASTIC_RESTART_COUNT");
  if (rank == victim) {
    for (const int other : all) {
      if (other != victim) await("waits_" + std::to_string(other) + generation);
    }
    if (how == "blame") {
      recorder.conclude("rank 0 ate the batch");
      call.sequence = 2;
      recorder.end(recorder.begin(call), true);
      std::exit(3);
    }
    if (how == "wait") std::this_thread::sleep_for(std::chrono::minutes(1));
    if (how != "kill") std::exit(std::stoi(how));
    raise(SIGKILL);
  }
  call.sequence = 2;
  recorder.begin(call);
  touch("waits_" + std::to_string(rank) + generation);
  std::printf("waits\n");
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::minutes(1));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.at(0) == "meet") return meet(words.size() > 1 ? words[1] : "none");
    return record(std::stoi(words.at(1)), words.at(2));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "test rank: %s\n", error.what());
    return 1;
  }
}
