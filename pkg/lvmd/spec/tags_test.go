//go:build !kernel

package spec

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/must"
)

func TestAnIdentitySurvivesItsTags(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(label string) string {
			return rapid.StringN(0, 60, maxOwnerLength).Draw(t, label)
		}
		i := Identity{
			Name: rapid.StringMatching(`[A-Za-z0-9._-]{1,128}`).Draw(t, "name"), Class: rapid.StringMatching(`[a-z0-9]{1,63}`).Draw(t, "class"),
			Size:         Size{Required: rapid.Int64Min(1).Draw(t, "required"), Limit: rapid.Int64Min(0).Draw(t, "limit")},
			DefaultClass: rapid.Bool().Draw(t, "default"), DAX: rapid.Bool().Draw(t, "dax"),
			Owner: Owner{Cluster: text("cluster"), Namespace: text("namespace"), Claim: text("claim"), ClaimUID: text("uid"),
				PodNamespace: text("pod namespace"), Pod: text("pod"), PodUID: text("pod uid")},
		}
		if rapid.Bool().Draw(t, "block") {
			i.Block = true
		} else {
			i.FSType, i.FSUUID = filesystem.XFS, NewUUID()
			i.Profile = rapid.SampledFrom([]filesystem.Profile{filesystem.Usual, filesystem.Scratch}).Draw(t, "profile")
			i.Settings = rapid.SampledFrom([]filesystem.Settings{"", "block-size=1024,label=a.b-c_d", "root-mode=1777,root-owner=1:2"}).Draw(t, "settings")
		}
		tags := i.Tags()
		for _, tag := range tags {
			if !ondisk.ValidTag(tag) {
				t.Fatalf("%q is no tag", tag)
			}
		}
		// Others may add tags of their own.
		got, err := FromTags(append(tags, "backup", "carve.later=x"))
		if err != nil || got != i {
			t.Fatalf("%+v becomes %q and then %+v, error %v", i, tags, got, err)
		}
		if d := i.Difference(got); d != "" {
			t.Fatalf("differs: %s", d)
		}
	})
}

func TestTagsThatMakeNoSenseAreAnError(t *testing.T) {
	good := []string{TagMarker, "carve.name=a", "carve.class=b", "carve.mode=filesystem", "carve.fs=ext4:u", "carve.req=1:0"}
	must.Get(FromTags(good))(t)
	for _, c := range []struct{ name, from, to string }{
		{"no name", "carve.name=a", "x"},
		{"no class", "carve.class=b", "x"},
		{"no mode", "carve.mode=filesystem", "x"},
		{"a mode that does not go with the file system", "carve.mode=filesystem", "carve.mode=block"},
		{"no file system", "carve.fs=ext4:u", "x"},
		{"no UUID", "carve.fs=ext4:u", "carve.fs=ext4"},
		{"a request without a limit", "carve.req=1:0", "carve.req=1"},
		{"a request that is no number", "carve.req=1:0", "carve.req=1:x"},
		{"a bad escape", "carve.name=a", "carve.name=#x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spoilt := strings.Split(strings.ReplaceAll(strings.Join(good, "\n"), c.from, c.to), "\n")
			if i, err := FromTags(spoilt); err == nil {
				t.Errorf("%q became %+v", spoilt, i)
			}
		})
	}
}

// Earlier and later versions share the journal's keys.
func TestWhatJournalsHaveIsRead(t *testing.T) {
	const stored = `{"name":"pvc-1","class":"local","fsType":"ext4","fsUUID":"u","profile":"scratch","fsSettings":"s",` +
		`"required":5,"limit":7,"owner":{"claim":"c"},"source":"cv2"}`
	var i Identity
	if err := json.Unmarshal([]byte(stored), &i); err != nil {
		t.Fatal(err)
	}
	if i.FSType != "ext4" || i.FSUUID != "u" || i.Profile != "scratch" || i.Settings != "s" || i.Required != 5 || i.Limit != 7 || i.Source != "cv2" {
		t.Errorf("read as %+v", i)
	}
	i.AtLeast = 9
	if again, err := json.Marshal(i); err != nil || string(again) != stored {
		t.Errorf("written as %s, error %v", again, err)
	}
}
