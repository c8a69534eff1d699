package ondisk

import (
	"bytes"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/must"
)

func TestMetadataHeadsAreReadFromADisk(t *testing.T) {
	disk, err := os.ReadFile("testdata/pv.bin")
	if err != nil {
		t.Fatal(err)
	}
	head, _, err := readMetadata(bytes.NewReader(disk), false)
	if want := (Head{Group: "carve", UUID: "5CZaeI-sxI3-efUU-wFok-KrJJ-TPRE-q7G4wg", Seqno: 2, Size: 1469, Limit: 521472}); err != nil || head != want {
		t.Errorf("%+v, want %+v, error %v", head, want, err)
	}
}

func TestGarbageOnADiskIsAnErrorAndNoPanic(t *testing.T) {
	disk := must.Get(os.ReadFile("testdata/pv.bin"))(t)
	rapid.Check(t, func(t *rapid.T) {
		spoilt := bytes.Clone(disk)
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			spoilt[rapid.IntRange(0, 0x1900).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		if head, _, err := readMetadata(bytes.NewReader(spoilt), false); err == nil && !ValidName(head.Group) {
			t.Fatalf("%+v", head)
		}
	})
	if _, _, err := readMetadata(bytes.NewReader(make([]byte, 8192)), false); err == nil {
		t.Error("an empty disk was accepted")
	}
}

func TestATextThatIsBeingReplacedAndTheSmallestAreaAreNoticed(t *testing.T) {
	disk := must.Get(os.ReadFile("testdata/pv.bin"))(t)
	header := must.Get(findHeader(bytes.NewReader(disk)))(t)
	area := must.Get(metadataAreas(header))(t)[0]
	text := must.Get(locateText(bytes.NewReader(disk), area))(t)

	small := diskArea{area.offset, area.size / 2}
	head, _, err := newest(bytes.NewReader(disk), []diskArea{small, area}, false)
	if want := int64(small.size-sectorSize)/2 - sectorSize; err != nil || head.Limit != want {
		t.Errorf("limit of two areas %d, error %v, want that of the smaller one, %d", head.Limit, err, want)
	}

	disk[area.offset+text.offset+text.size-2] ^= 1
	if _, _, err := readMetadata(bytes.NewReader(disk), true); err == nil {
		t.Error("a text without its checksum was accepted")
	}
	if _, _, err := readMetadata(bytes.NewReader(disk), false); err != nil {
		t.Errorf("its head: %v", err)
	}
}
