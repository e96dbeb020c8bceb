#include "launch/nodes.h"

#include <unistd.h>

#include <array>
#include <climits>

namespace tessera::launch {
namespace {

Node own_node(const RunPlan& plan) {
  constexpr std::size_t kNumDigits = 16;
  std::array<char, HOST_NAME_MAX + 1> host{};
  gethostname(host.data(), host.size() - 1);
  Node node;
  node.node_rank = plan.node_rank;
  node.num_nodes = plan.num_nodes;
  node.num_ranks = plan.num_ranks;
  node.master_port = plan.master_port;
  node.id = store::Secret::mint().hex().substr(0, kNumDigits);
  node.host = host.data();
  return node;
}

EventLogPlace place_of(const RunPlan& plan, const Node& own) {
  return {plan.store_address,  plan.store_port,    plan.secret.value(), plan.meeting_timeout, own.id,
          Agreement::tag(own), plan.node_rank == 0};
}

}  // namespace

Nodes::Nodes(const RunPlan& plan) : agreement_(own_node(plan)), log_(place_of(plan, agreement_.own())) {
  tell(Agreement::joined(agreement_.own()));
}

void Nodes::take_news() {
  const EventLog::News news = log_.take();
  for (const std::string& event : news.events) agreement_.take(event);
  if (news.disconnection) agreement_.take_disconnection(news.disconnection->why, news.disconnection->exit_code);
}

std::string Nodes::cause(int generation) const {
  const Failure* failure = agreement_.failure(generation);
  if (failure == nullptr) return agreement_.ending()->text;
  const std::string node = agreement_.title(failure->node_rank);
  if (failure->rank < 0) return "of " + node + ": " + failure->meaning;
  return "of rank " + std::to_string(failure->rank) + " on " + node + ", which " + failure->meaning;
}

std::vector<flight::RankStatus> Nodes::ranks_to_blame(int generation) const {
  std::vector<flight::RankStatus> ranks;
  flight::RankStatus status;
  const Failure* failure = agreement_.failure(generation);
  if (failure != nullptr) {
    if (failure->rank < 0 || failure->node_rank == agreement_.own().node_rank) return ranks;
    status.rank = failure->rank;
    status.condition = flight::RankCondition::kDead;
    status.detail = "on " + agreement_.title(failure->node_rank) + ", it " + failure->meaning;
    ranks.push_back(status);
    return ranks;
  }
  const int lost = agreement_.ending()->lost_node;
  if (lost < 0) return ranks;
  for (int local_rank = 0; local_rank < agreement_.num_ranks(lost); ++local_rank) {
    status.rank = agreement_.first_rank(lost) + local_rank;
    status.condition = flight::RankCondition::kSilent;
    status.detail = agreement_.title(lost) + " was lost";
    ranks.push_back(status);
  }
  return ranks;
}

}  // namespace tessera::launch
