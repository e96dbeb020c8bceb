#pragma once

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "launch/process.h"

namespace tessera::testing {

/// Two network namespaces, each with a loopback of its own, joined by a link that both call "link0". Needs the rights
/// of root; see made().
class TwoNetworks {
 public:
  TwoNetworks() {
    const std::string unique = "tessera-test-" + std::to_string(getpid()) + "-";
    names_ = {unique + "0", unique + "1"};
    made_ = run("ip netns add " + names_[0]) && run("ip netns add " + names_[1]) &&
            // Made inside them: the machine's own network sees neither the link nor its addresses.
            run("ip link add link0 netns " + names_[0] + " type veth peer name link0 netns " + names_[1]) &&
            set_up(0) && set_up(1);
  }
  ~TwoNetworks() {
    for (const std::string& name : names_) run("ip netns delete " + name);
  }
  TwoNetworks(const TwoNetworks&) = delete;
  TwoNetworks& operator=(const TwoNetworks&) = delete;

  bool made() const { return made_; }
  static std::string address(int node) { return "10.231.78." + std::to_string(node + 1); }
  std::vector<std::string> inside(int node) const {
    return {launch::find_program("ip").path, "netns", "exec", names_.at(static_cast<std::size_t>(node))};
  }
  /// Packets vanish from now on; neither end notices.
  bool cut() const { return run("ip -n " + names_[1] + " link set link0 down"); }

 private:
  static bool run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;  // NOLINT
  }
  bool set_up(int node) const {
    const std::string ip = "ip -n " + names_.at(static_cast<std::size_t>(node));
    return run(ip + " address add " + address(node) + "/24 dev link0") && run(ip + " link set lo up") &&
           run(ip + " link set link0 up");
  }

  std::array<std::string, 2> names_;
  bool made_ = false;
};

}  // namespace tessera::testing
