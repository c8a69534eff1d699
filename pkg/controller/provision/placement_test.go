package provision

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/carve-csi/carve/pkg/controller/clientfake"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/fleet"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/scheduler"
)

type looks struct {
	corelisters.NodeLister
	times int
}

func (l *looks) Get(name string) (*v1.Node, error) {
	l.times++
	return l.NodeLister.Get(name)
}

func TestANodeIsChosenAmongThoseWithSpace(t *testing.T) {
	client := clientfake.New()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, fleet.New(fleet.Options{}), all, all, slog.New(slog.DiscardHandler)))(t)
	at := &looks{NodeLister: c.NodeLister}
	c.NodeLister = at
	ledger := scheduler.NewLedger(time.Now)
	for i := range 100 {
		free := int64(1 << 20)
		if i < 5 {
			free = 1 << 30
		}
		ledger.Report(fmt.Sprint("node-", i), scheduler.NodeReport{Classes: []scheduler.ClassReport{{Name: "local", Default: true, Total: 1 << 30, Available: free, MaximumVolume: free}}})
	}
	l, r, class := placer{c, ledger}, spec.Request{Bytes: 1 << 29}, &storagev1.StorageClass{}
	// None of them is connected, so choose looks at every candidate.
	if got := l.choose(&attempt{}, selection{}, class, r); got != "" || at.times != 5 {
		t.Errorf("100 nodes, 95 of which are full: want none of 5 chosen, got %q of %d", got, at.times)
	}
	at.times = 0
	err := l.explain(&attempt{}, selection{began: c.Now()}, class, r)
	if want := "100 are not connected"; !strings.Contains(err.Error(), want) || at.times != 100 {
		t.Errorf("want all 100 nodes explained, with %q, got %d: %v", want, at.times, err)
	}
}
