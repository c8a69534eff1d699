package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/carve-csi/carve/e2e/carve"
)

// cloneCount is how many clones of one claim are asked for at once.
const cloneCount = 128

// cloning is what many clones of one claim took. They are all made in the source's volume group.
type cloning struct {
	all    time.Duration   // from the first claim's creation until the last one was bound
	bound  []time.Duration // from then until each was bound, sorted
	writes writes          // our API writes per clone, from creation to removal
}

// cloneAtOnce has a claim cloned many times at once, and removes it and the clones.
func (c *cluster) cloneAtOnce(ctx context.Context) (*cloning, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*waitTimeout+2*cloneCount*c.createTime)
	defer cancel()
	namespace, err := c.makeNamespace(ctx, "clones-")
	if err != nil {
		return nil, err
	}
	if err := c.createPod(ctx, namespace, 0, volumeBytes); err != nil {
		return nil, err
	}
	source := "pod-0-" + volumeName
	err = carve.Until(ctx, waitTimeout, "the source of the clones is bound", func(ctx context.Context) error {
		claim, err := c.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, source, metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("it is %s", claim.Status.Phase)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	before, err := c.writes(ctx)
	if err != nil {
		return nil, err
	}
	result := &cloning{}
	if err := c.bindClones(ctx, namespace, source, result); err != nil {
		return nil, err
	}
	if err := c.client.CoreV1().PersistentVolumeClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return nil, fmt.Errorf("delete the clones: %w", err)
	}
	if err := c.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return nil, fmt.Errorf("delete the source's Pod: %w", err)
	}
	if err := c.noVolumes(ctx, waitTimeout+cloneCount*c.createTime); err != nil {
		return nil, err
	}
	if err := pause(ctx, quietTime); err != nil { // capacity that is free again is published a moment later
		return nil, err
	}
	after, err := c.writes(ctx)
	result.writes = after.since(before, cloneCount)
	return result, err
}

// bindClones makes the claims and waits until all are bound.
func (c *cluster) bindClones(ctx context.Context, namespace, source string, result *cloning) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen := make(chan any, 10*cloneCount)
	if err := c.follow(watching, namespace, seen); err != nil {
		return err
	}
	begin := time.Now()
	creating, creatingCtx := errgroup.WithContext(ctx)
	creating.SetLimit(16)
	creating.Go(func() error {
		for i := range cloneCount {
			creating.Go(func() error { return c.createClone(creatingCtx, namespace, source, i) })
		}
		return nil
	})
	bound := map[string]bool{source: true}
	for len(result.bound) < cloneCount {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d clones are bound: %w", len(result.bound), cloneCount, ctx.Err())
		case object := <-seen:
			claim, ok := object.(*corev1.PersistentVolumeClaim)
			if ok && claim.Status.Phase == corev1.ClaimBound && !bound[claim.Name] {
				bound[claim.Name] = true
				result.bound = append(result.bound, time.Since(begin))
			}
		}
	}
	result.all = time.Since(begin)
	slices.Sort(result.bound)
	return creating.Wait()
}

func (c *cluster) createClone(ctx context.Context, namespace, source string, i int) error {
	class := className(0)
	_, err := c.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("clone-%d", i)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			DataSource: &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(volumeBytes, resource.BinarySI)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a clone: %w", err)
	}
	return nil
}
