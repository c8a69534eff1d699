package reclaim

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/clientfake"
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
	client := clientfake.New()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
	d := NewDeleter(c, Options{Metrics: NewMetrics(prometheus.NewRegistry())})
	d.claimGone["pvc-1"] = goneClaim{uid: "claim"}
	if again, err := d.sync(t.Context(), "pvc-1"); again != 0 || err != nil {
		t.Errorf("looked at again after %v: %v", again, err)
	}
	if len(d.claimGone) != 0 {
		t.Errorf("remembered of a volume that is gone: %v", d.claimGone)
	}
}

// TestNamespacesTakeTurnsAtTheirDeletions has one worker, and in its queue many volumes of one
// namespace before one of another. None of them names its node, of which an Event is written.
func TestNamespacesTakeTurnsAtTheirDeletions(t *testing.T) {
	client := clientfake.New()
	all := informers.NewSharedInformerFactory(client, 0)
	c := must.Get(cluster.New(client, nil, all, all, slog.New(slog.DiscardHandler)))(t)
	events := record.NewFakeRecorder(100)
	c.Recorder = events
	d := NewDeleter(c, Options{Parallel: 1, Metrics: NewMetrics(prometheus.NewRegistry())})
	add := func(namespace, name string) {
		must.Succeed(t, c.Volumes.GetIndexer().Add(&v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PersistentVolumeSpec{
				PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete, ClaimRef: &v1.ObjectReference{Namespace: namespace, Name: name},
				PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: names.Driver, VolumeHandle: name}},
			},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeReleased},
		}))
		d.loop.Add(name)
	}
	for i := range 8 {
		add("crowd", fmt.Sprintf("c%d", i))
	}
	add("other", "o")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { d.loop.Run(ctx); close(done) }()
	first := []string{<-events.Events, <-events.Events}
	cancel()
	<-done
	if !slices.ContainsFunc(first, func(e string) bool { return strings.Contains(e, "PersistentVolume o:") }) {
		t.Errorf("the first volumes that were looked at are %q, want one of each namespace", first)
	}
}
