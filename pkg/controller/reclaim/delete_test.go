package reclaim

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/must"
)

func TestOfAttemptsThatFailOnlySomeAreReported(t *testing.T) {
	for what, c := range map[string]struct {
		inUse bool
		want  []int
	}{
		"a volume in use":     {true, []int{5, 11, 17}},
		"a node that refuses": {false, []int{0, 1, 2, 3, 4, 5, 11, 17}},
	} {
		var reported []int
		for failures := range 20 {
			if worthReporting(failures, c.inUse) {
				reported = append(reported, failures)
			}
		}
		if !slices.Equal(reported, c.want) {
			t.Errorf("%s: reported after %v failures, want %v", what, reported, c.want)
		}
	}
}

func TestADeletedClaimIsForgottenWithItsVolume(t *testing.T) {
	client := fake.NewClientset()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
	d := NewDeleter(c, Options{CompleteRelease: true, Metrics: NewMetrics(prometheus.NewRegistry())})
	d.claimGone["pvc-1"] = goneClaim{uid: "claim"}
	if again, err := d.sync(t.Context(), "pvc-1"); again != 0 || err != nil {
		t.Errorf("looked at again after %v: %v", again, err)
	}
	if len(d.claimGone) != 0 {
		t.Errorf("remembered of a volume that is gone: %v", d.claimGone)
	}
}
