package plugin

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/carve-csi/carve/pkg/controller/objects"
)

// candidates is the PersistentVolumes as upstream's binder lists them for a Pod: by class, without those that belong to
// other claims than the Pod's, which it would pass over for each node. A volume that is assumed to belong to a claim is
// where it was.
type candidates struct {
	cache.Indexer
	// pod is whose claims' volumes are listed, listed how many have been.
	pod    *v1.Pod
	listed int
}

// candidateIndexes begins the names of indexes that hold a volume by the value that upstream's function has for it, or
// by that and the claim to which it belongs.
const candidateIndexes = "carve/"

// AddIndexers implements cache.Indexer.
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

// ByIndex implements cache.Indexer.
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

// ofClaim is no class, whose name has no slash.
func ofClaim(class, claim string) string { return class + "/" + claim }
