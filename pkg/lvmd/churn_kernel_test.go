//go:build kernel

package lvmd_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/waittest"
)

// As on a node of a CI cluster, deleted space must become free while others continue, not when
// they end.
func TestSpaceComesBackWhileNamespacesCreateAndDelete(t *testing.T) {
	const (
		tenants, rounds = 10, 16
		size            = 4 << 20
		// mostLeft bounds the volumes that take space after each round: one live volume per
		// namespace, and a few that wait for their batch. Starved removals would leave nearly all.
		mostLeft = 5 * tenants
	)
	n := newNode(t)
	n.lasting = true
	p := n.start()
	all := p.available()
	var deleted atomic.Int64
	var most int64 // of one namespace alone
	var wg sync.WaitGroup
	for tenant := range tenants {
		wg.Go(func() {
			for i := range rounds {
				r := create(fmt.Sprintf("pvc-%d-%d", tenant, i), size, "")
				r.Owner.ClaimNamespace = fmt.Sprintf("ns-%d", tenant)
				created, err := p.client.CreateVolume(t.Context(), r)
				if err == nil {
					_, err = p.client.DeleteVolume(t.Context(), &lvmdv1.DeleteVolumeRequest{Id: created.GetVolume().GetId()})
				}
				if err != nil {
					t.Error(err)
					return
				}
				deleted.Add(1)
				if tenant == 0 {
					most = max(most, (all-p.available())/size)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("of %d volumes, at most %d took space at once", deleted.Load(), most)
	if most > mostLeft {
		t.Errorf("%d of %d volumes take space under load, want at most %d", most, tenants*rounds, mostLeft)
	}
	waittest.Until(t, "all space is back", func() bool { return p.available() == all })
	if left := n.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
