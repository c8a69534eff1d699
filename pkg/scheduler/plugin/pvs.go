package plugin

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/pkg/controller/objects"
)

// candidates lists the PersistentVolumes for upstream's binder, by class and for one Pod. It leaves
// out volumes that belong to other claims, which upstream would skip for each node. A volume that
// is only assumed to belong to a claim keeps its place in the index.
type candidates struct {
	cache.Indexer
	// pod's claims determine the listed volumes; listed counts them.
	pod    *v1.Pod
	listed int
}

// candidateIndexes is the prefix of indexes by the value of upstream's function or, for a volume
// that belongs to a claim, by that and the claim.
const candidateIndexes = "carve/"

func (c *candidates) AddIndexers(upstream cache.Indexers) error {
	for name, function := range upstream {
		err := addIndex(c.Indexer, candidateIndexes+name, func(object any) ([]string, error) {
			pv, ok := object.(*v1.PersistentVolume)
			if !ok {
				return nil, fmt.Errorf("a %T is no PersistentVolume", object)
			}
			values, err := function(object)
			if claim := pv.Spec.ClaimRef; claim != nil {
				for i := range values {
					values[i] = ofClaim(values[i], claim.Namespace+"/"+claim.Name)
				}
			}
			return values, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *candidates) ByIndex(name, value string) ([]any, error) {
	found, err := c.Indexer.ByIndex(candidateIndexes+name, value)
	if err != nil {
		return nil, err
	}
	for _, claim := range objects.ClaimsNamed(c.pod) {
		own, err := c.Indexer.ByIndex(candidateIndexes+name, ofClaim(value, claim))
		if err != nil {
			return nil, err
		}
		found = append(found, own...)
	}
	c.listed += len(found)
	return found, nil
}

// ofClaim cannot collide with a class, whose name has no slash.
func ofClaim(class, claim string) string { return class + "/" + claim }
