#include "checkpoint/faulty_file_system.h"

#include <tessera/core/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "checkpoint/disk/disk_error.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using checkpoints::disk_error;
using checkpoints::OutputFile;
using checkpoints::WriteRange;

/// How likely a thing that is not safe is there after a cut. None and all must come often: each is a class of its own.
double pick_chance(std::mt19937& random) {
  constexpr double kChances[] = {0.0, 1.0, 0.5, 0.9, 0.1};
  return kChances[random() % std::size(kChances)];
}

bool happens(double chance, std::mt19937& random) { return random() < chance * 4294967296.0; }

int error_number(Fault fault) { return fault == Fault::kNoSpace ? ENOSPC : EIO; }

}  // namespace

struct FaultyFileSystem::File {
  std::string seen;
  std::string safe;
  std::set<std::size_t> unsafe_sectors;

  void take_over(std::size_t sector) {
    const std::size_t begin = sector * kSectorBytes;
    if (begin < safe.size()) seen.copy(safe.data() + begin, std::min(kSectorBytes, safe.size() - begin), begin);
  }

  /// Not those that a failing sync has lost.
  void make_all_safe() {
    safe.resize(seen.size(), '\0');
    for (const std::size_t sector : unsafe_sectors) take_over(sector);
    unsafe_sectors.clear();
  }

  /// Some of what is not safe becomes so, the rest is lost.
  void settle(std::mt19937& random) {
    if (safe.size() != seen.size() && happens(pick_chance(random), random)) safe.resize(seen.size(), '\0');
    const double chance = pick_chance(random);
    for (const std::size_t sector : unsafe_sectors) {
      if (happens(chance, random)) take_over(sector);
    }
    unsafe_sectors.clear();
  }
};

struct FaultyFileSystem::Folder {
  Names seen;
  Names safe;
  std::vector<Change> unsafe_changes;

  static void apply(const Change& change, Names& names) {
    for (const auto& [name, node] : change) {
      names.erase(name);
      if (node) names.emplace(name, *node);
    }
  }

  void change(const Change& change) {
    apply(change, seen);
    unsafe_changes.push_back(change);
  }

  void make_all_safe() {
    safe = seen;
    unsafe_changes.clear();
  }

  /// After a cut. Either the changes came in their order, up to one of them, or any of them.
  void settle(std::mt19937& random) {
    const double chance = pick_chance(random);
    const bool is_in_order = random() % 2 == 0;
    for (const Change& change : unsafe_changes) {
      if (happens(chance, random)) {
        apply(change, safe);
      } else if (is_in_order) {
        break;
      }
    }
    unsafe_changes.clear();
    seen = safe;
    for (const auto& [name, node] : safe) {
      if (const auto* folder = std::get_if<std::shared_ptr<Folder>>(&node)) {
        (*folder)->settle(random);
      } else {
        File& file = *std::get<std::shared_ptr<File>>(node);
        file.settle(random);
        file.seen = file.safe;
      }
    }
  }

  void add_to(std::map<std::string, std::string>& all, const std::string& path) const {
    for (const auto& [name, node] : seen) {
      if (const auto* folder = std::get_if<std::shared_ptr<Folder>>(&node)) {
        all[path + name + "/"];
        (*folder)->add_to(all, path + name + "/");
      } else {
        all[path + name] = std::get<std::shared_ptr<File>>(node)->seen;
      }
    }
  }
};

class FaultyFileSystem::Handle : public OutputFile {
 public:
  Handle(FaultyFileSystem& files, fs::path path, std::shared_ptr<File> file)
      : files_(files), path_(std::move(path)), file_(std::move(file)) {}

  void write(std::vector<WriteRange> ranges) override {
    const std::lock_guard lock(files_.mutex_);
    const Fault fault = files_.begin("write", path_);
    files_.write(*file_, ranges, fault == Fault::kNone ? 1.0 : pick_chance(files_.random_));
    if (fault != Fault::kNone) files_.fail(fault, path_);
  }

  void sync() override {
    const std::lock_guard lock(files_.mutex_);
    const Fault fault = files_.begin("sync", path_);
    if (fault == Fault::kPowerCut) files_.fail(fault, path_);
    if (fault != Fault::kNone) {
      file_->settle(files_.random_);
      files_.fail(fault, path_);
    }
    if (!files_.are_file_syncs_ignored_) file_->make_all_safe();
  }

 private:
  FaultyFileSystem& files_;
  fs::path path_;
  std::shared_ptr<File> file_;
};

FaultyFileSystem::FaultyFileSystem(std::uint32_t seed) : random_(seed), root_(std::make_shared<Folder>()) {}
FaultyFileSystem::~FaultyFileSystem() = default;

void FaultyFileSystem::arm(Fault fault, int call) {
  const std::lock_guard lock(mutex_);
  fault_ = fault;
  fault_call_ = call;
  num_calls_ = 0;
  struck_.clear();
}

int FaultyFileSystem::num_calls() const {
  const std::lock_guard lock(mutex_);
  return num_calls_;
}

std::string FaultyFileSystem::struck() const {
  const std::lock_guard lock(mutex_);
  return struck_;
}

Fault FaultyFileSystem::begin(const std::string& call, const fs::path& path) {
  if (is_cut_) throw PowerCut{};
  if (++num_calls_ != fault_call_ || fault_ == Fault::kNone) return Fault::kNone;
  struck_ = call + " " + path.filename().string();
  return fault_;
}

void FaultyFileSystem::begin_or_fail(const std::string& call, const fs::path& path) {
  if (const Fault fault = begin(call, path); fault != Fault::kNone) fail(fault, path);
}

void FaultyFileSystem::fail(Fault fault, const fs::path& path) {
  if (fault == Fault::kPowerCut) {
    is_cut_ = true;
    throw PowerCut{};
  }
  throw disk_error(path, "cannot be used", error_number(fault));
}

std::optional<FaultyFileSystem::Node> FaultyFileSystem::find(const fs::path& path) const {
  Node node = root_;
  for (const fs::path& name : path.relative_path()) {
    const auto* folder = std::get_if<std::shared_ptr<Folder>>(&node);
    if (folder == nullptr) return std::nullopt;
    const auto found = (*folder)->seen.find(name.string());
    if (found == (*folder)->seen.end()) return std::nullopt;
    node = Node(found->second);
  }
  return node;
}

FaultyFileSystem::Node FaultyFileSystem::node_at(const fs::path& path) const {
  const std::optional<Node> node = find(path);
  if (!node) throw disk_error(path, "cannot be found", ENOENT);
  return *node;
}

std::shared_ptr<FaultyFileSystem::Folder> FaultyFileSystem::folder_at(const fs::path& path) const {
  const Node node = node_at(path);
  const auto* folder = std::get_if<std::shared_ptr<Folder>>(&node);
  if (folder == nullptr) throw disk_error(path, "cannot be used", ENOTDIR);
  return *folder;
}

void FaultyFileSystem::change(const fs::path& folder, const Change& change) { folder_at(folder)->change(change); }

void FaultyFileSystem::write(File& file, const std::vector<WriteRange>& ranges, double chance) {
  for (const WriteRange& range : ranges) {
    if (range.end() > file.seen.size()) throw InternalError("bytes are written behind the end of the file");
    for (std::uint64_t place = range.offset; place < range.end();) {
      const std::uint64_t sector = place / kSectorBytes;
      const std::uint64_t end = std::min<std::uint64_t>(range.end(), (sector + 1) * kSectorBytes);
      if (happens(chance, random_)) {
        std::memcpy(file.seen.data() + place, range.bytes.data() + (place - range.offset), end - place);
        file.unsafe_sectors.insert(sector);
      }
      place = end;
    }
  }
}

bool FaultyFileSystem::exists(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  begin_or_fail("exists", path);
  return find(path).has_value();
}

std::vector<std::string> FaultyFileSystem::list(const fs::path& folder) {
  const std::lock_guard lock(mutex_);
  begin_or_fail("list", folder);
  std::vector<std::string> names;
  for (const auto& [name, node] : folder_at(folder)->seen) names.push_back(name);
  return names;
}

std::optional<std::string> FaultyFileSystem::read(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  begin_or_fail("read", path);
  const std::optional<Node> node = find(path);
  return node ? std::optional(std::get<std::shared_ptr<File>>(*node)->seen) : std::nullopt;
}

void FaultyFileSystem::make_folder(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  begin_or_fail("make_folder", path);
  if (find(path)) throw disk_error(path, "cannot be made", EEXIST);
  change(path.parent_path(), {{path.filename().string(), std::make_shared<Folder>()}});
}

std::unique_ptr<OutputFile> FaultyFileSystem::create(const fs::path& path, std::uint64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  begin_or_fail("create", path);
  if (find(path)) throw disk_error(path, "cannot be made", EEXIST);
  auto file = std::make_shared<File>();
  file->seen.resize(num_bytes, '\0');
  change(path.parent_path(), {{path.filename().string(), file}});
  return std::make_unique<Handle>(*this, path, std::move(file));
}

std::unique_ptr<OutputFile> FaultyFileSystem::open(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  begin_or_fail("open", path);
  return std::make_unique<Handle>(*this, path, std::get<std::shared_ptr<File>>(node_at(path)));
}

void FaultyFileSystem::sync_folder(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  begin_or_fail("sync_folder", path);
  if (!are_folder_syncs_ignored_) folder_at(path)->make_all_safe();
}

void FaultyFileSystem::rename(const fs::path& from, const fs::path& to) {
  const std::lock_guard lock(mutex_);
  const Fault fault = begin("rename", from);
  if (fault == Fault::kNoSpace || fault == Fault::kInputOutput) fail(fault, from);
  const Node node = node_at(from);
  if (from.parent_path() != to.parent_path()) throw InternalError("renamed into another folder");
  change(from.parent_path(), {{from.filename().string(), std::nullopt}, {to.filename().string(), node}});
  if (fault != Fault::kNone) fail(fault, from);
}

void FaultyFileSystem::exchange(const fs::path& a, const fs::path& b, const fs::path& aside) {
  if (is_exchange_in_two_) {
    sync_folder(a.parent_path());
    rename(b, aside);
    return rename(a, b);
  }
  const std::lock_guard lock(mutex_);
  const Fault fault = begin("exchange", a);
  if (fault == Fault::kNoSpace || fault == Fault::kInputOutput) fail(fault, a);
  const Node node_a = node_at(a);
  const Node node_b = node_at(b);
  change(a.parent_path(), {{a.filename().string(), node_b}, {b.filename().string(), node_a}});
  if (fault != Fault::kNone) fail(fault, a);
}

void FaultyFileSystem::remove_file(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  begin_or_fail("remove_file", path);
  if (!find(path)) throw disk_error(path, "cannot be removed", ENOENT);
  change(path.parent_path(), {{path.filename().string(), std::nullopt}});
}

void FaultyFileSystem::remove_all(Folder& folder, double chance) {
  const Names names = folder.seen;
  for (const auto& [name, node] : names) {
    if (const auto* inner = std::get_if<std::shared_ptr<Folder>>(&node)) remove_all(**inner, chance);
    if (happens(chance, random_)) folder.change({{name, std::nullopt}});
  }
}

void FaultyFileSystem::remove_folder(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  const Fault fault = begin("remove_folder", path);
  remove_all(*folder_at(path), fault == Fault::kNone ? 1.0 : pick_chance(random_));
  if (fault != Fault::kNone) fail(fault, path);
  change(path.parent_path(), {{path.filename().string(), std::nullopt}});
}

std::map<std::string, std::string> FaultyFileSystem::seen() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> all;
  root_->add_to(all, "/");
  return all;
}

void FaultyFileSystem::write_seen(const fs::path& into) const {
  for (const auto& [path, bytes] : seen()) {
    const fs::path real = into / fs::path(path).relative_path();
    if (path.ends_with('/')) {
      fs::create_directory(real);  // sorted, so those above it come first
    } else {
      std::ofstream(real, std::ios::binary) << bytes;
    }
  }
}

void FaultyFileSystem::restart(std::uint32_t seed) {
  const std::lock_guard lock(mutex_);
  std::mt19937 random(seed);
  root_->settle(random);
  is_cut_ = false;
  fault_ = Fault::kNone;
}

}  // namespace tessera::testing
