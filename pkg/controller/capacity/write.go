package capacity

import (
	"context"
	"errors"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/controller/cluster"
)

func (p *Publisher) current(name string) *storagev1.CSIStorageCapacity {
	return p.objects.get(p.Namespace + "/" + name)
}

func (p *Publisher) noteWritten(key Key, object *storagev1.CSIStorageCapacity, operation string) {
	p.Metrics.writes.WithLabelValues(operation).Inc()
	p.objects.wrote(object)
	p.forgetIncrease(key)
}

func (p *Publisher) create(ctx context.Context, key Key, object *storagev1.CSIStorageCapacity) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	object.Namespace = p.Namespace
	created, err := p.Client.StorageV1().CSIStorageCapacities(p.Namespace).Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return p.adopt(ctx, key, object)
	}
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	p.noteWritten(key, created, "create")
	return nil
}

// adopt updates an existing object that our cache lacks: the cache is outdated, or the object lost
// the label by which we select ours.
func (p *Publisher) adopt(ctx context.Context, key Key, target *storagev1.CSIStorageCapacity) error {
	current, err := p.Client.StorageV1().CSIStorageCapacities(p.Namespace).Get(ctx, target.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the object that exists: %w", err)
	}
	if p.keyOf(current) != key {
		if err := p.remove(ctx, current); err != nil {
			return err
		}
		return errors.New("an object that says something else had the name")
	}
	if equalCapacity(current, target) {
		p.objects.wrote(current)
		return nil
	}
	return p.update(ctx, key, current, target)
}

func (p *Publisher) update(ctx context.Context, key Key, current, target *storagev1.CSIStorageCapacity) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	object := current.DeepCopy()
	if object.Labels == nil {
		object.Labels = map[string]string{}
	}
	for k, v := range target.Labels {
		object.Labels[k] = v
	}
	if len(target.OwnerReferences) > 0 {
		object.OwnerReferences = target.OwnerReferences
	}
	if until := target.Annotations[names.AnnotationHeldBack]; until == "" {
		delete(object.Annotations, names.AnnotationHeldBack)
	} else {
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, names.AnnotationHeldBack, until)
	}
	object.Capacity, object.MaximumVolumeSize = target.Capacity, target.MaximumVolumeSize
	updated, err := p.Client.StorageV1().CSIStorageCapacities(p.Namespace).Update(ctx, object, metav1.UpdateOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			p.objects.deleted(current)
		}
		return fmt.Errorf("update: %w", err)
	}
	p.noteWritten(key, updated, "update")
	return nil
}

func (p *Publisher) remove(ctx context.Context, object *storagev1.CSIStorageCapacity) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.APITimeout)
	defer cancel()
	err := p.Client.StorageV1().CSIStorageCapacities(p.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &object.UID}})
	if err != nil && !cluster.IsOutdated(err) {
		return fmt.Errorf("delete: %w", err)
	}
	p.objects.deleted(object)
	p.Metrics.writes.WithLabelValues("delete").Inc()
	return nil
}

func equalCapacity(current, target *storagev1.CSIStorageCapacity) bool {
	if current.Capacity == nil || current.MaximumVolumeSize == nil ||
		current.Annotations[names.AnnotationHeldBack] != target.Annotations[names.AnnotationHeldBack] {
		return false
	}
	for k, v := range target.Labels {
		if current.Labels[k] != v {
			return false
		}
	}
	if len(target.OwnerReferences) > 0 && !slices.Equal(current.OwnerReferences, target.OwnerReferences) {
		return false
	}
	return current.Capacity.Cmp(*target.Capacity) == 0 && current.MaximumVolumeSize.Cmp(*target.MaximumVolumeSize) == 0
}
