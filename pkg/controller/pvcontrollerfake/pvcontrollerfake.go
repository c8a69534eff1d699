// Package pvcontrollerfake binds claims to volumes as Kubernetes' PV controller does, for
// tests with a fake API server.
package pvcontrollerfake

import (
	"errors"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"
)

// PVController binds a claim when its volume is created.
type PVController struct {
	tracker clienttesting.ObjectTracker
	stopped atomic.Bool
}

// Start binds the claims of an API server. Its writes bypass the client.
func Start(client *fake.Clientset) *PVController {
	p := &PVController{tracker: client.Tracker()}
	create := clienttesting.ObjectReaction(p.tracker)
	client.PrependReactor("create", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, obj, err := create(action)
		if pv, ok := obj.(*v1.PersistentVolume); ok && err == nil && !p.stopped.Load() {
			err = p.bind(pv)
		}
		return handled, obj, err
	})
	return p
}

// Stop stops binding, as if the PV controller were behind or away.
func (p *PVController) Stop() { p.stopped.Store(true) }

func (p *PVController) bind(pv *v1.PersistentVolume) error {
	ref := pv.Spec.ClaimRef
	if ref == nil || pv.Status.Phase != "" && pv.Status.Phase != v1.VolumePending {
		return nil
	}
	claims := v1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	obj, err := p.tracker.Get(claims, ref.Namespace, ref.Name)
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if err != nil || !ok || claim.UID != ref.UID || claim.Spec.VolumeName != "" {
		return nil //nolint:nilerr // The claim is gone, or another volume's.
	}
	pv, claim = pv.DeepCopy(), claim.DeepCopy()
	pv.Status.Phase = v1.VolumeBound
	for key, value := range map[string]string{volume.AnnBindCompleted: "yes", volume.AnnBoundByController: "yes",
		volume.AnnStorageProvisioner: pv.Annotations[volume.AnnDynamicallyProvisioned]} {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, key, value)
	}
	claim.Spec.VolumeName = pv.Name
	claim.Status.Phase, claim.Status.AccessModes, claim.Status.Capacity = v1.ClaimBound, pv.Spec.AccessModes, pv.Spec.Capacity
	claim.Status.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
	return errors.Join(p.tracker.Update(v1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""),
		p.tracker.Update(claims, claim, claim.Namespace))
}
