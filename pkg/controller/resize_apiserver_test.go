//go:build apiserver

package controller

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// The API server allows a lower request while the growth failed, down to the claim's present
// size.
func TestGrowthThatAskedForTooMuchCanBeTakenBackOnARealServer(t *testing.T) {
	client := connectToAPIServer(t)
	w := newWorld(t, client)
	w.namespace = ours
	install(t, client)
	storage := w.class(t, expandable)
	actOn(t, w, Options{Client: asController(t), Namespace: ours})
	sized := func(size string) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) {
			block := v1.PersistentVolumeBlock // grown without a kubelet
			c.Spec.VolumeMode, c.Spec.Resources.Requests[v1.ResourceStorage] = &block, resource.MustParse(size)
		}
	}
	ask := func(claim *v1.PersistentVolumeClaim, size string) {
		t.Helper()
		must.Get(client.CoreV1().PersistentVolumeClaims(ours).Patch(t.Context(), claim.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, size), metav1.PatchOptions{}))(t)
	}
	other := w.claim(t, storage, "n1", named("other", sized("600Mi")))
	w.waitBound(t, other)
	claims := []*v1.PersistentVolumeClaim{other}
	for name, tooMuch := range map[string]string{"ever": "100Gi", "now": "900Mi"} {
		claim := w.claim(t, storage, "n1", named(name, sized("100Mi")))
		claims = append(claims, claim)
		w.waitBound(t, claim)
		ask(claim, tooMuch)
		waittest.Until(t, "an Event says that it does not grow to "+tooMuch, func() bool {
			events, err := client.CoreV1().Events(ours).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + ",reason=VolumeResizeFailed"})
			return err == nil && len(events.Items) > 0
		})
		ask(claim, "128Mi")
		waittest.Until(t, "claim "+name+" has what is asked for now", func() bool { return w.get(claim).Status.Capacity.Storage().Value() == 128*mib })
	}
	for _, claim := range claims {
		w.delete(t, claim)
		waittest.Until(t, "its volume is gone", func() bool { return w.pv(claim) == nil })
	}
}
