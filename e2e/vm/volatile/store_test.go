package volatile

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"testing"
)

func newStore(t *testing.T, sectors int64, loss Loss) *store {
	t.Helper()
	s, err := openStore(filepath.Join(t.TempDir(), "disk"), sectors*sectorSize, loss)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.file.Close() })
	return s
}

func TestACutKeepsWhatWasFlushedAndWholeSectorsOfTheRest(t *testing.T) {
	for name, loss := range map[string]Loss{"in order": Latest, "in any order": Any} {
		t.Run(name, func(t *testing.T) {
			some, all, inOrder := 0, 0, true
			for seed := range uint64(60) {
				s := newStore(t, 8, loss)
				write := func(value byte, first, sectors int64) {
					if err := s.write(bytes.Repeat([]byte{value}, int(sectors)*sectorSize), first*sectorSize); err != nil {
						t.Fatal(err)
					}
				}
				write(1, 0, 8)
				s.flush()
				write(2, 2, 4)
				write(3, 4, 1)
				lost, unflushed, err := s.cut(rand.New(rand.NewPCG(seed, seed)))
				if err != nil || unflushed != 5 {
					t.Fatalf("%d unflushed, error %v", unflushed, err)
				}
				if lost == unflushed {
					all++
				} else {
					some++
				}
				got := make([]byte, 8*sectorSize)
				if err := s.read(got, 0); err != nil {
					t.Fatal(err)
				}
				values := ""
				for i := range 8 {
					sector := got[i*sectorSize : (i+1)*sectorSize]
					if bytes.Count(sector, sector[:1]) != sectorSize {
						t.Fatalf("sector %d is half written", i)
					}
					values += string('0' + sector[0])
				}
				if values[:2] != "11" || values[6:] != "11" {
					t.Fatalf("what was flushed is lost: %s", values)
				}
				switch values[2:6] {
				case "1111", "2111", "2211", "2221", "2222", "2232":
				default:
					inOrder = false
				}
			}
			if some == 0 || all == 0 || inOrder != (loss == Latest) {
				t.Errorf("%d cuts lost some, %d all; in order: %v", some, all, inOrder)
			}
		})
	}
}

func TestRangesOutsideTheDiskAreRefused(t *testing.T) {
	s := newStore(t, 2, Any)
	for _, c := range []struct{ off, length int64 }{{0, 3 * sectorSize}, {2 * sectorSize, sectorSize}, {1, sectorSize}, {-sectorSize, sectorSize}} {
		if s.write(make([]byte, c.length), c.off) == nil {
			t.Errorf("%d bytes at %d are written", c.length, c.off)
		}
	}
}
