#include <tessera/checkpoint/manifest.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "checkpoint/header_bytes.h"
#include "checkpoint/step_writer.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::repeated;
using testing::with_root;

/// A manifest that must be refused, and what the message must say beside its name.
struct RefusedManifest {
  const char* name;
  std::string text;
  std::vector<std::string> parts;
};

std::ostream& operator<<(std::ostream& stream, const RefusedManifest& refusal) { return stream << refusal.name; }

const std::string kStart = R"({"format":"tessera-checkpoint","version":1,"step":20,"num_ranks":2,"block_bytes":4096)";
const std::string kFile =
    R"({"name":"a.safetensors","bytes":900,"header_bytes":64,"header_checksum":"00000000000000ff"})";
const std::string kOther = R"({"name":"b.json","bytes":9,"checksum":"0000000000000001"})";
const std::string kSum = "0123456789abcdef";

std::string manifest(const std::string& files, const std::string& tensors, const std::string& values = "") {
  return with_root(kStart + R"(,"files":[)" + files + R"(],"tensors":[)" + tensors + R"(],"values":{)" + values + "}");
}

/// The members of a manifest but the first ones.
std::string starting(const std::string& start) { return with_root(start + R"(,"files":[],"tensors":[],"values":{})"); }

std::string slice(const std::string& view, const std::string& starts, const std::string& sizes,
                  const std::string& checksums = kSum, const std::string& rank = "0") {
  return R"({"rank":)" + rank + R"(,"view":)" + view + R"(,"starts":)" + starts + R"(,"sizes":)" + sizes +
         R"(,"checksums":")" + checksums + "\"}";
}

std::string tensor_named(const std::string& name, const std::string& slices, const std::string& shape = "[6,4]",
                         const std::string& file = "0", const std::string& group = "model") {
  return R"({"name":")" + name + R"(","group":")" + group + R"(","dtype":"F32","shape":)" + shape + R"(,"file":)" +
         file + R"(,"slices":[)" + slices + "]}";
}

/// One tensor "t" of 6 x 4 elements with these slices.
std::string sliced(const std::string& slices) { return manifest(kFile, tensor_named("t", slices)); }

const std::string kWhole = slice("[6,4]", "[0,0]", "[6,4]");

std::vector<RefusedManifest> refusals_of_text() {
  const std::string good = manifest(kFile + "," + kOther, tensor_named("t", kWhole));
  std::string flipped = good;
  flipped[20] = static_cast<char>(flipped[20] ^ 1);
  std::string root = good;
  root[root.size() - 5] = root[root.size() - 5] == '0' ? '1' : '0';
  return {
      {"Empty", "", {"empty"}},
      {"NoManifest", "{}\n", {"ends with its root"}},
      {"CutShort", good.substr(0, good.size() / 2), {"ends with its root", "cut short"}},
      {"NoLineFeedAtTheEnd", good.substr(0, good.size() - 1), {"ends with its root"}},
      {"SomethingBehind", good + "\n", {"ends with its root"}},
      {"FlippedBit", flipped, {"damaged", "root"}},
      {"AnotherRoot", root, {"damaged", "root"}},
      {"RootOfCapitals", kStart + R"(,"root":"ABCDEF00ABCDEF00ABCDEF00ABCDEF00"})" + "\n", {"damaged"}},
      {"SeveralLines", with_root(kStart + ",\n\"files\":[],\"tensors\":[],\"values\":{}"), {"one line"}},
      {"NoJson", with_root(kStart + R"(,"files" [],"tensors":[],"values":{})"), {"JSON", "byte"}},
      {"InvalidUtf8", manifest("", "", "\"\xff\":1"), {"JSON in UTF-8"}},
      {"AList", with_root("[1"), {"expected an object", "a list"}},
      {"DeepNesting", with_root(repeated("[", 100'000) + "1"), {"expected an object", "a list"}},
      {"UnknownMember", starting(kStart + R"(,"more":1)"), {"\"more\"", "unknown"}},
      {"MemberTwice", starting(kStart + R"(,"step":20)"), {"step", "twice"}},
      {"RootTwice", starting(kStart + R"(,"root":"00")"), {"root", "twice"}},
      {"NoValues", with_root(kStart + R"(,"files":[],"tensors":[])"), {"values is missing"}},
      {"NoStep",
       starting(R"({"format":"tessera-checkpoint","version":1,"num_ranks":2,"block_bytes":4096)"),
       {"step is missing"}},
      {"AnotherFormat", starting(R"({"format":"other")"), {"\"tessera-checkpoint\"", "\"other\""}},
      {"AnotherVersion", starting(R"({"format":"tessera-checkpoint","version":3)"), {"version 1 or 2", "found 3"}},
      {"FormatThatIsANumber", starting(R"({"format":1)"), {"a text as format", "found 1"}},
      {"NegativeStep", starting(R"({"step":-1)"), {"a whole number of at least 0 as step", "-1"}},
      {"StepWithFraction", starting(R"({"step":1.0)"), {"step", "1.0"}},
      {"StepBeyondSixtyThreeBits", starting(R"({"step":9223372036854775808)"), {"step", "9223372036854775808"}},
      {"StepBeyondAllBits", starting(R"({"step":18446744073709551616)"), {"step", "18446744073709551616"}},
      {"NoRanks", starting(R"({"num_ranks":0)"), {"num_ranks", "1 to", "found 0"}},
      {"TooManyRanks", starting(R"({"num_ranks":2147483648)"), {"num_ranks", "2147483648"}},
      {"NoBlock", starting(R"({"block_bytes":0)"), {"block_bytes", "4096", "found 0"}},
      {"HugeBlock", starting(R"({"block_bytes":1099511627776)"), {"block_bytes", "67108864", "1099511627776"}},
      {"BlockOfNoPowerOfTwo", starting(R"({"block_bytes":5000)"), {"power of two", "5000"}},
      {"NullAsStep", starting(R"({"step":null)"), {"step", "null"}},
      {"FilesThatAreAnObject", with_root(kStart + R"(,"files":{})"), {"a list of objects as files", "an object"}},
      {"FilesInAListOfLists", with_root(kStart + R"(,"files":[[]])"), {"an object in the list", "a list"}},
      {"ValuesThatAreAList", with_root(kStart + R"(,"values":[])"), {"values", "a list"}},
      {"ValueThatIsAList", manifest("", "", R"("a":[])"), {"\"a\"", "a list"}},
      {"ValueThatIsNull", manifest("", "", R"("a":null)"), {"\"a\"", "null"}},
      {"ValueTwice", manifest("", "", R"("a":1,"\u0061":2)"), {"\"a\"", "twice"}},
      {"ValueTooLarge", manifest("", "", R"("a":9223372036854775808)"), {"\"a\"", "too large"}},
      {"ValueBeyondDoubles", manifest("", "", R"("a":1e999)"), {"JSON"}},
  };
}

std::vector<RefusedManifest> refused_manifests() {
  const auto file = [](const std::string& members) { return manifest("{" + members + "}", ""); };
  return {
      {"FileTwice", manifest(kFile + "," + kFile, ""), {"\"a.safetensors\"", "twice"}},
      {"FileInAnotherFolder",
       file(R"("name":"../x","bytes":1,"checksum":"0123456789abcdef")"),
       {"same folder", "../x"}},
      {"FileAbove", file(R"("name":"..","bytes":1,"checksum":"0123456789abcdef")"), {"same folder", ".."}},
      {"FileWithARoot", file(R"("name":"/etc/x","bytes":1,"checksum":"0123456789abcdef")"), {"same folder", "/etc/x"}},
      {"FileWithoutAName", file(R"("name":"","bytes":1,"checksum":"0123456789abcdef")"), {"same folder"}},
      {"FileWithAZero", file(R"("name":"a\u0000","bytes":1,"checksum":"0123456789abcdef")"), {"same folder", "\\x00"}},
      {"TheManifestItself",
       file(R"("name":"manifest.json","bytes":1,"checksum":"0123456789abcdef")"),
       {"another file"}},
      {"FileWithoutBytes", file(R"("name":"a","checksum":"0123456789abcdef")"), {"file 0", "bytes is missing"}},
      {"FileWithoutChecksum", file(R"("name":"a","bytes":1)"), {"file 0", "checksum is missing"}},
      {"HeaderWithoutChecksum", file(R"("name":"a","bytes":90,"header_bytes":20)"), {"header_checksum is missing"}},
      {"ChecksumOfBothKinds",
       file(R"("name":"a","bytes":90,"header_bytes":20,"checksum":"0123456789abcdef")"),
       {"file 0", "both"}},
      {"HeaderLargerThanTheFile",
       file(R"("name":"a","bytes":90,"header_bytes":91,"header_checksum":"0123456789abcdef")"),
       {"\"a\"", "90", "91"}},
      {"HeaderAboveTheLimit", file(R"("header_bytes":100000009)"), {"header_bytes", "100000009"}},
      {"HeaderTooSmall", file(R"("header_bytes":9)"), {"header_bytes", "found 9"}},
      {"ShortChecksum", file(R"("checksum":"0123456789abcde")"), {"16 digits", "found 15"}},
      {"LongChecksum", file(R"("checksum":"0123456789abcdef0123456789abcdef")"), {"16 digits", "found 32"}},
      {"ChecksumOfCapitals", file(R"("checksum":"0123456789ABCDEF")"), {"digits", "\"A\""}},
  };
}

std::vector<RefusedManifest> refused_tensors() {
  const std::string t = "\"t\"";
  return {
      {"TensorTwice",
       manifest(kFile, tensor_named("t", kWhole) + "," + tensor_named("u", kWhole) + "," + tensor_named("t", kWhole)),
       {t, "twice", "\"model\""}},
      {"TensorOfTwoGroupsInOneFile",
       manifest(kFile, tensor_named("t", kWhole) + "," + tensor_named("t", kWhole, "[6,4]", "0", "optimizer")),
       {"two tensors", t, "a.safetensors"}},
      {"NoSuchFile", manifest(kFile, tensor_named("t", kWhole, "[6,4]", "1")), {t, "file 1", "there are 1"}},
      {"NoSafetensorsFile",
       manifest(kFile + "," + kOther, tensor_named("t", kWhole, "[6,4]", "1")),
       {t, "b.json", "no safetensors"}},
      {"UnknownDtype", manifest(kFile, R"({"name":"t","dtype":"F7"})"), {t, "\"F7\"", "unknown"}},
      {"TensorWithoutShape",
       manifest(kFile, R"({"name":"t","group":"g","dtype":"F32","file":0,"slices":[]})"),
       {t, "shape is missing"}},
      {"NegativeSize", manifest(kFile, R"({"name":"t","shape":[-1]})"), {t, "shape", "-1"}},
      {"FractionAsSize", manifest(kFile, R"({"name":"t","shape":[1.5]})"), {t, "shape", "1.5"}},
      {"NestedShape", manifest(kFile, R"({"name":"t","shape":[[1]]})"), {t, "shape", "a list"}},
      {"SizeTooLarge", manifest(kFile, R"({"name":"t","shape":[9223372036854775808]})"), {t, "shape", "too large"}},
      {"TooManyDims", manifest(kFile, R"({"name":"t","shape":[1)" + repeated(",1", 64) + "]}"), {t, "more than 64"}},
      {"OverflowOfTheProduct",
       manifest(kFile, tensor_named("t", "", "[4294967296,4294967296]")),
       {t, "[4294967296, 4294967296]", "counted"}},
      {"SlicesOfNumbers", manifest(kFile, R"({"name":"t","slices":[1]})"), {t, "an object in the list", "1"}},
      {"UnknownMemberOfASlice", manifest(kFile, R"({"name":"t","slices":[{"x":1}]})"), {t, "slice 0", "\"x\""}},
      {"SliceWithoutView",
       manifest(kFile, R"({"name":"t","slices":[{"rank":0,"starts":[],"sizes":[],"checksums":""}]})"),
       {t, "slice 0", "view is missing"}},
      {"RankThatWasNotThere", sliced(slice("[24]", "[0]", "[24]", kSum, "2")), {t, "slice 0", "below 2", "found 2"}},
      {"ViewOfAnotherSize", sliced(slice("[23]", "[0]", "[23]")), {t, "slice 0", "[23]", "[6, 4]"}},
      {"ViewThatOverflows",
       sliced(slice("[4294967296,4294967296]", "[0,0]", "[1,1]")),
       {t, "slice 0", "[4294967296, 4294967296]"}},
      {"SliceOutside", sliced(slice("[24]", "[1]", "[24]")), {t, "slice 0", "not inside"}},
      {"SliceOfOtherDims", sliced(slice("[6,4]", "[0]", "[24]")), {t, "slice 0", "not inside"}},
      {"StartThatOverflows",
       sliced(slice("[24]", "[9223372036854775807]", "[9223372036854775807]")),
       {t, "slice 0", "not inside"}},
      {"NoSlices", sliced(""), {t, "no slice holds element 0"}},
      {"Hole",
       sliced(slice("[24]", "[0]", "[10]") + "," + slice("[24]", "[11]", "[13]")),
       {t, "no slice holds element 10"}},
      {"EndThatIsMissing", sliced(slice("[24]", "[0]", "[10]")), {t, "no slice holds element 10"}},
      {"Overlap",
       sliced(slice("[24]", "[0]", "[10]") + "," + slice("[24]", "[9]", "[15]")),
       {t, "slices 0 and 1 overlap at element 9"}},
      {"OverlapOfTheSameSlices", sliced(kWhole + "," + kWhole), {t, "slices 0 and 1 overlap at element 0"}},
      {"OverlapOfBoxes",
       sliced(slice("[6,4]", "[0,0]", "[6,3]") + "," + slice("[6,4]", "[0,2]", "[6,2]")),
       {t, "slices 0 and 1 overlap at element 2"}},
      {"BoxAndExtentThatOverlap",
       sliced(slice("[6,4]", "[0,0]", "[6,2]") + "," + slice("[24]", "[2]", "[22]")),
       {t, "overlap at element 4"}},
      {"TooFewChecksums",
       sliced(slice("[24]", "[0]", "[24]", "")),
       {t, "slice 0", "1 checksums", "96 bytes", "found 0"}},
      {"TooManyChecksums", sliced(slice("[24]", "[0]", "[24]", kSum + kSum)), {t, "1 checksums", "found 2"}},
      {"ChecksumsOfAnEmptySlice",
       sliced(kWhole + "," + slice("[24]", "[24]", "[0]", kSum)),
       {t, "slice 1", "0 checksums", "found 1"}},
      {"HalfAChecksum", sliced(slice("[24]", "[0]", "[24]", "01234567")), {t, "16 digits", "found 8"}},
      {"ChecksumOfLetters", sliced(slice("[24]", "[0]", "[24]", "0123456789abcdeg")), {t, "digits", "\"g\""}},
  };
}

class ManifestRefusal : public ::testing::TestWithParam<RefusedManifest> {};

TEST_P(ManifestRefusal, NamesTheFileAndTheFault) {
  const std::string message =
      testing::message_of<StorageError>([] { Manifest::parse(GetParam().text, "some/manifest.json"); });
  testing::expect_parts(message, {"some/manifest.json"});
  for (const std::string& part : GetParam().parts) testing::expect_parts(message, {part});
  EXPECT_LT(message.size(), 600U);
}

const auto kName = [](const ::testing::TestParamInfo<RefusedManifest>& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Text, ManifestRefusal, ::testing::ValuesIn(refusals_of_text()), kName);
INSTANTIATE_TEST_SUITE_P(Files, ManifestRefusal, ::testing::ValuesIn(refused_manifests()), kName);
INSTANTIATE_TEST_SUITE_P(Tensors, ManifestRefusal, ::testing::ValuesIn(refused_tensors()), kName);

TEST(ManifestText, IsAcceptedWithoutAFault) {
  const Manifest read = Manifest::parse(
      manifest(kFile + "," + kOther, tensor_named("u", "", "[0,4]") + "," + tensor_named("t", kWhole), R"("a":-1)"),
      "some/manifest.json");
  EXPECT_EQ(read.tensors[0].name, "t");
  EXPECT_EQ(read.values.at("a"), ManifestValue(std::int64_t{-1}));
}

}  // namespace
}  // namespace tessera
