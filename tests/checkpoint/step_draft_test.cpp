#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/save/step_draft.h"
#include "checkpoint/text_range.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::checkpoints {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace)
using testing::expect_parts;
using testing::message_of;
using testing::TemporaryFolder;
using testing::text_of_file;

std::vector<std::string> names_in(const fs::path& folder) { return FileSystem::disk().list(folder); }

StepDraft make_draft(const fs::path& root, std::int64_t step = 20) {
  return StepDraft::create(FileSystem::disk(), root, step, {{"a", 8, "head"}, {"index", 4, "text"}});
}

void save(const fs::path& root, std::int64_t step, std::string_view tail) {
  StepDraft draft = make_draft(root, step);
  draft.write("a", {range(4, tail)});
  draft.publish_part(0, "part");
  draft.await_parts(1, 1s);
  EXPECT_EQ(draft.commit("manifest"), "");
}

TEST(StepDraft, IsAStepOnlyAfterCommit) {
  const TemporaryFolder folder;
  const fs::path root = folder.path() / "runs" / "checkpoints";
  StepDraft draft = make_draft(root);
  StepDraft other = StepDraft::join(FileSystem::disk(), root, 20);
  draft.write("a", {range(4, "01")});
  other.write("a", {range(6, "23")});
  other.publish_part(1, "of 1");
  draft.publish_part(0, "of 0");
  EXPECT_EQ(draft.await_parts(2, 1s), (std::vector<std::string>{"of 0", "of 1"}));
  EXPECT_EQ(names_in(root), (std::vector<std::string>{".step-00000020.saving"}));
  draft.commit("manifest");
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"step-00000020"}));
  const fs::path step = root / "step-00000020";
  EXPECT_EQ(names_in(step), (std::vector<std::string>{"a", "index", "manifest.json"}));
  EXPECT_EQ(text_of_file(step / "a"), "head0123");
  EXPECT_EQ(text_of_file(step / "index"), "text");
  EXPECT_EQ(text_of_file(step / "manifest.json"), "manifest");
}

TEST(StepDraft, ReplacesAStepAsAWhole) {
  const TemporaryFolder folder;
  save(folder.path(), 20, "old!");
  save(folder.path(), 20, "new!");
  EXPECT_EQ(text_of_file(folder.path() / "step-00000020" / "a"), "headnew!");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-00000020"}));
}

TEST(StepDraft, GivesItsRoomBackWhenThereIsNotEnough) {
  const TemporaryFolder folder;
  const std::vector<DraftFile> files{{"a", 1 << 20, "head"}, {"huge", std::uint64_t{1} << 43, ""}};
  expect_parts(message_of<StorageError>([&] { StepDraft::create(FileSystem::disk(), folder.path(), 20, files); }),
               {"huge", "bytes are needed"});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{});
}

TEST(StepDraft, BeginsAnewWhereATryWasLeft) {
  const TemporaryFolder folder;
  {
    StepDraft left = make_draft(folder.path());
    left.publish_part(0, "of another try");
    fs::create_directory(folder.path() / ".step-00000020.removing");
  }
  StepDraft draft = make_draft(folder.path());
  EXPECT_EQ(names_in(draft.folder()), (std::vector<std::string>{"a", "index"}));
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{".step-00000020.saving"}));
}

TEST(StepDraft, WaitsForThePartsOfAllRanks) {
  const TemporaryFolder folder;
  StepDraft draft = make_draft(folder.path());
  draft.publish_part(0, "of 0");
  std::jthread later([&folder] {
    StepDraft other = StepDraft::join(FileSystem::disk(), folder.path(), 20);
    std::this_thread::sleep_for(50ms);
    other.publish_part(1, "of 1");
  });
  EXPECT_EQ(draft.await_parts(2, 20s), (std::vector<std::string>{"of 0", "of 1"}));
}

TEST(StepDraft, NamesTheRanksWhosePartDoesNotCome) {
  const TemporaryFolder folder;
  StepDraft draft = make_draft(folder.path());
  draft.publish_part(1, "of 1");
  expect_parts(message_of<StorageError>([&] { draft.await_parts(12, 10ms); }),
               {"ranks 0, 2, 3, 4, 5, 6, 7, 8 and 3 others of 12", "within 10 ms"});
}

TEST(StepDraft, PassesOnWhyARankFailed) {
  const TemporaryFolder folder;
  StepDraft draft = make_draft(folder.path());
  StepDraft::join(FileSystem::disk(), folder.path(), 20).publish_failure(1, "its disk is gone");
  expect_parts(message_of<StorageError>([&] { draft.await_parts(2, 20s); }), {"rank 1", "its disk is gone"});
}

TEST(StepDraft, SaysThatAFolderIsNotThere) {
  const TemporaryFolder folder;
  expect_parts(message_of<StorageError>([&] { StepDraft::join(FileSystem::disk(), folder.path(), 20, 0ms); }),
               {".step-00000020.saving", "rank 0 has made", "all ranks see"});
  StepDraft draft = make_draft(folder.path());
  fs::remove_all(folder.path());
  expect_parts(message_of<StorageError>([&] { draft.commit("manifest"); }), {"No such file", "removed the folder"});
}

TEST(StepDraft, RemovesAStep) {
  const TemporaryFolder folder;
  save(folder.path(), 20, "tail");
  save(folder.path(), 40, "tail");
  remove_step(FileSystem::disk(), folder.path(), 20);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-00000040"}));
}

TEST(StepDraft, LeavesOthersFilesAlone) {
  const TemporaryFolder folder;
  const std::vector<std::string> others{".notes", ".step-x.saving", ".step-00000020.saved", "step-00000020"};
  for (const std::string& name : others) fs::create_directory(folder.path() / name);
  for (const char* name : {".step-00000060.saving", ".step-00000080.removing"}) {
    fs::create_directories(folder.path() / name / "inner");
  }
  remove_leftovers(FileSystem::disk(), folder.path());
  const auto left = names_in(folder.path());
  EXPECT_EQ(left.size(), others.size());
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(folder.path() / name)) << name;
}

}  // namespace
}  // namespace tessera::checkpoints
