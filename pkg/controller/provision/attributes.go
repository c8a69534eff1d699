package provision

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/controller/cluster"
	"github.com/carve-csi/carve/pkg/controller/spec"
	"github.com/carve-csi/carve/pkg/iolimit"
)

// attributes returns the limits of the claim's VolumeAttributesClass, which override the
// StorageClass'. It asks the API server until the informer has synced. Errors are as in find.
func (s sources) attributes(ctx context.Context, claim *v1.PersistentVolumeClaim, r spec.Request) (iolimit.Limits, error) {
	if r.AttributesClass == "" {
		return r.IOLimits, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	var class *storagev1.VolumeAttributesClass
	var err error
	synced := s.attributesClasses.HasSynced()
	if synced {
		class, err = storagelisters.NewVolumeAttributesClassLister(s.attributesClasses.GetIndexer()).Get(r.AttributesClass)
	} else {
		class, err = s.Client.StorageV1().VolumeAttributesClasses().Get(ctx, r.AttributesClass, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err) && !synced:
		if has, err := cluster.Serves(ctx, s.Client.Discovery(), storagev1.SchemeGroupVersion, cluster.VolumeAttributesClasses); err == nil && !has {
			return iolimit.Limits{}, &notReadyError{fmt.Sprintf("spec.volumeAttributesClassName is %s, and this API server has no VolumeAttributesClasses in %s: "+
				"upgrade to Kubernetes 1.34 or newer, or make the claim again without it", r.AttributesClass, storagev1.SchemeGroupVersion)}
		}
		fallthrough
	case apierrors.IsNotFound(err):
		return iolimit.Limits{}, &notReadyError{fmt.Sprintf("spec.volumeAttributesClassName: VolumeAttributesClass %s does not exist; waiting for it", r.AttributesClass)}
	case err != nil:
		return iolimit.Limits{}, fmt.Errorf("read VolumeAttributesClass %s of claim %s/%s: %w", r.AttributesClass, claim.Namespace, claim.Name, err)
	}
	return spec.AttributesOf(class)
}

// matchLimits corrects the limits of a volume made earlier: the class changed since, or the
// node's lvmd predates limits.
func (p *Provisioner) matchLimits(ctx context.Context, node string, vol *lvmdv1.Volume, want iolimit.Limits) error {
	if iolimit.FromProto(vol.GetIoLimits()) == want {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	var err error
	p.loop.Outside(func() {
		_, err = p.Fleet.ModifyVolume(ctx, node, &lvmdv1.ModifyVolumeRequest{Id: vol.GetId(), IoLimits: want.Proto()})
	})
	return err
}
