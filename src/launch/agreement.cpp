#include "launch/agreement.h"

#include <array>
#include <climits>
#include <sstream>
#include <unistd.h>
#include <utility>

#include "launch/process.h"

namespace tessera::launch {
namespace {

constexpr int kLostExitCode = 3;  // that of a CommError

std::string rest_of(std::istringstream& words) {
  std::string rest;
  std::getline(words >> std::ws, rest);
  return rest;
}

std::string numbers_text(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

}  // namespace

Agreement::Agreement(Node own) : own_(std::move(own)), nodes_(static_cast<std::size_t>(own_.num_nodes)) {}

std::string Agreement::joined(const Node& node) {
  std::ostringstream text;
  text << "join " << node.node_rank << ' ' << node.num_nodes << ' ' << node.num_ranks << ' ' << node.master_port << ' '
       << node.id << ' ' << node.host;
  return text.str();
}

std::string Agreement::failed(int generation, const Failure& failure) {
  std::ostringstream text;
  text << "failed " << generation << ' ' << failure.node_rank << ' ' << failure.rank << ' ' << failure.exit_code << ' '
       << failure.is_final << ' ' << failure.meaning;
  return text.str();
}

std::string Agreement::done(int generation, int node_rank) {
  return "done " + std::to_string(generation) + " " + std::to_string(node_rank);
}

std::string Agreement::restarted(int generation) { return "restart " + std::to_string(generation); }

std::string Agreement::over(int exit_code) { return "over " + std::to_string(exit_code); }

std::string Agreement::signalled(int node_rank, int signal) {
  return "signal " + std::to_string(node_rank) + " " + std::to_string(signal);
}

std::string Agreement::gave_up() { return "gave_up"; }

void Agreement::take(const std::string& event) {
  std::istringstream words(event);
  std::string kind;
  words >> kind;
  int first = -1;
  if (kind == "join") {
    Node node;
    words >> node.node_rank >> node.num_nodes >> node.num_ranks >> node.master_port >> node.id;
    node.host = rest_of(words);
    take_join(node);
  } else if (kind == "failed") {
    Failure failure;
    words >> first >> failure.node_rank >> failure.rank >> failure.exit_code >> failure.is_final;
    failure.meaning = rest_of(words);
    if (first == generation_) failures_.emplace(first, failure);
  } else if (kind == "done") {
    int node_rank = -1;
    words >> first >> node_rank;
    if (first == generation_) done_.insert(node_rank);
  } else if (kind == "restart") {
    words >> generation_;
    done_.clear();
  } else if (kind == "over") {
    words >> first;
    end({first, 0, -1, ""});
  } else if (kind == "signal") {
    int signal = 0;
    words >> first >> signal;
    end({128 + signal, signal, -1, title(first) + " got " + signal_name(signal)});
  } else if (kind == "lost") {
    std::string id;
    words >> first >> id;
    if (!is_member(first, id)) return;
    end({kLostExitCode, 0, first,
         title(first) + " was lost: its launcher ended without a word, or cannot be reached any more"});
  } else if (kind == "gave_up") {
    end({kLostExitCode, 0, -1,
         "the job has " + std::to_string(own_.num_nodes) + " nodes, and these did not come in time: node " +
             numbers_text(missing()) +
             "; start a launcher on each, with the same rdzv_endpoint and secret_file, or raise rdzv_timeout"});
  }
}

void Agreement::take_disconnection(const std::string& why, int exit_code) {
  end({exit_code, 0, nodes_[0] ? 0 : -1, nodes_[0] ? title(0) + " was lost: " + why : why});
}

void Agreement::take_join(const Node& node) {
  if (node.node_rank == 0 && !nodes_[0]) {
    nodes_[0] = node;
    if (own_.id != node.id && own_.num_nodes != node.num_nodes) refuse(own_, "");
    for (const Node& early : std::exchange(early_, {})) take_join(early);
    return;
  }
  if (!nodes_[0]) {
    early_.push_back(node);
    return;
  }
  if (node.num_nodes != nodes_[0]->num_nodes) return refuse(node, "");
  if (node.node_rank < 0 || node.node_rank >= own_.num_nodes) return;
  auto& place = nodes_[static_cast<std::size_t>(node.node_rank)];
  if (place) {
    return refuse(node, "node_rank " + std::to_string(node.node_rank) + " is taken by the launcher on " + place->host +
                            "; give each node a number of its own");
  }
  place = node;
}

void Agreement::refuse(const Node& node, const std::string& why) {
  if (node.id != own_.id || !refusal_.empty()) return;
  refusal_ = !why.empty()
                 ? why
                 : "nnodes: expected " + std::to_string(nodes_[0]->num_nodes) + ", as node 0 (" + nodes_[0]->host +
                       ") says, found " + std::to_string(own_.num_nodes) + "; give the same to all nodes";
}

void Agreement::end(Ending ending) {
  if (ending_) return;
  // A node that is lost after a failure is most likely lost because of it, so the exit code is that of the failure.
  const Failure* before = failure(generation_);
  if (before != nullptr && ending.lost_node >= 0) ending.exit_code = before->exit_code;
  ending_ = std::move(ending);
}

bool Agreement::is_member(int node_rank, const std::string& id) const {
  if (node_rank < 0 || node_rank >= own_.num_nodes) return false;
  const auto& node = nodes_[static_cast<std::size_t>(node_rank)];
  return node && node->id == id;
}

const Failure* Agreement::failure(int generation) const {
  const auto found = failures_.find(generation);
  return found == failures_.end() ? nullptr : &found->second;
}

std::vector<int> Agreement::missing() const {
  std::vector<int> missing;
  for (int node = 0; node < own_.num_nodes; ++node) {
    if (!nodes_[static_cast<std::size_t>(node)]) missing.push_back(node);
  }
  return missing;
}

int Agreement::first_rank(int node_rank) const {
  int first = 0;
  for (int node = 0; node < node_rank; ++node) first += num_ranks(node);
  return first;
}

std::string Agreement::title(int node_rank) const {
  const bool known = node_rank >= 0 && node_rank < own_.num_nodes && nodes_[static_cast<std::size_t>(node_rank)];
  return "node " + std::to_string(node_rank) +
         (known ? " (" + nodes_[static_cast<std::size_t>(node_rank)]->host + ")" : "");
}

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
