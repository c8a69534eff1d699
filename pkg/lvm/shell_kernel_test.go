//go:build kernel

package lvm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/must"
)

func lasting(t testing.TB) *lvm.Runner {
	t.Helper()
	dir := t.TempDir()
	must.Succeed(t, lvm.MakeSystemDir(dir))
	r := &lvm.Runner{Binary: "lvm", Timeout: time.Minute, SystemDir: dir, Lasting: true}
	t.Cleanup(r.Close)
	return r
}

func TestALastingLVMSeesWhatOthersDo(t *testing.T) {
	const name = "carve-test"
	group(t, name)
	h := must.Get(lvm.NewHost(lasting(t)))(t)
	seqno := func() uint64 {
		t.Helper()
		found, err := h.Scan(t.Context(), []string{name})
		if err != nil || len(found) != 1 {
			t.Fatalf("%d groups, error %v", len(found), err)
		}
		return found[0].Seqno
	}
	before := seqno()
	for i := range 3 {
		volume := fmt.Sprintf("ours%d", i)
		must.Succeed(t, h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: volume, Extents: 2, Tags: []string{"a+b=c"}}))
		// An administrator changes the group between two commands of ours.
		lvmByHand(t, "lvcreate", "--yes", "--extents", "1", "--name", fmt.Sprintf("theirs%d", i), name)
		if err := h.Extend(t.Context(), name, volume, 3); err != nil {
			t.Error(err)
		}
	}
	if got := seqno(); got != before+9 {
		t.Errorf("sequence number %d, then %d", before, got)
	}
	if err := h.Remove(t.Context(), name, []string{"theirs0", "ours1", "theirs2"}); err != nil {
		t.Error(err)
	}
	if err := h.Remove(t.Context(), name, []string{"theirs0"}); err == nil {
		t.Error("what is gone was removed again")
	}
	if err := h.Create(t.Context(), lvm.CreateOptions{Group: name, Volume: "large", Extents: 1 << 30}); err == nil {
		t.Error("more was given than there is")
	}
	if pieces, err := h.Mapping(name, "ours0"); err != nil || len(pieces) == 0 {
		t.Errorf("mapping %v, error %v", pieces, err)
	}
}

// BenchmarkProcess compares a process per change with a lasting one, on the same group in
// turns. Only the ratio matters.
func BenchmarkProcess(b *testing.B) {
	const name, rounds = "carve-test", 10
	lvmByHand(b, "vgcreate", "--yes", name, "/dev/vdb")
	defer func() {
		lvmByHand(b, "vgremove", "--yes", "--force", name)
		lvmByHand(b, "pvremove", "--yes", "/dev/vdb")
	}()
	keeps, starts := lasting(b), lasting(b)
	starts.Lasting = false
	hosts := []*lvm.Host{must.Get(lvm.NewHost(starts))(b), must.Get(lvm.NewHost(keeps))(b)}
	for _, h := range hosts {
		must.Get(h.Scan(b.Context(), []string{name}))(b)
	}
	var create, remove [2]time.Duration
	for b.Loop() {
		for i := range rounds {
			for k, h := range hosts {
				volume := fmt.Sprintf("v%d-%d", k, i)
				start := time.Now()
				err := h.Create(b.Context(), lvm.CreateOptions{Group: name, Volume: volume, Extents: 2})
				created := time.Now()
				if err == nil {
					err = h.Remove(b.Context(), name, []string{volume})
				}
				if err != nil {
					b.Fatal(err)
				}
				create[k] += created.Sub(start)
				remove[k] += time.Since(created)
			}
		}
	}
	b.ReportMetric(create[1].Seconds()/create[0].Seconds(), "lasting-to-started-lvcreate")
	b.ReportMetric(remove[1].Seconds()/remove[0].Seconds(), "lasting-to-started-lvremove")
	b.ReportMetric(0, "ns/op")
}
