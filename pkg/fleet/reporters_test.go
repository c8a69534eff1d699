package fleet

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/uplink"
)

// reporting is a fleet whose sessions carry nothing: the test reports for the nodes.
type reporting struct {
	*rapid.T
	fleet      *Fleet
	generation uint64
}

var (
	reportingNodes = rapid.SampledFrom([]string{"n1", "n2", "n3"})
	reportedIDs    = rapid.SampledFrom([]string{"id1", "id2", "id3", "id4"})
	reportedNames  = rapid.SampledFrom([]string{"", "pvc-1", "pvc-2", "pvc-3"})
	reported       = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *lvmdv1.Volume {
		return &lvmdv1.Volume{Id: reportedIDs.Draw(t, "id"), Name: reportedNames.Draw(t, "name")}
	}), 0, 4)
)

func (r *reporting) connect() (*node, *uplink.Session) {
	name := reportingNodes.Draw(r.T, "node")
	n := r.fleet.nodes[name]
	if n == nil {
		n = &node{name: name, view: &View{Node: name}}
		r.fleet.nodes[name] = n
	}
	if n.session == nil || rapid.Bool().Draw(r.T, "new session") {
		n.session = &uplink.Session{}
	}
	return n, n.session
}

func (r *reporting) report(n *node, s *uplink.Session, message *lvmdv1.WatchResponse) {
	r.generation++
	message.Generation = r.generation
	if err := r.fleet.take(n, s, message); err != nil && status.Code(err) != codes.Internal {
		r.Fatalf("the report is refused: %v", err)
	}
}

// holders scans all views, without the index.
func (r *reporting) holders(key string, volumes func(*View) map[string]*lvmdv1.Volume) (nodes []string) {
	for _, view := range r.fleet.Views() {
		if volumes(view)[key] != nil {
			nodes = append(nodes, view.Node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func (r *reporting) check() {
	byID := func(v *View) map[string]*lvmdv1.Volume { return v.Volumes }
	byName := func(v *View) map[string]*lvmdv1.Volume { return v.ByName }
	ids, volumeNames := map[string]struct{}{}, map[string]struct{}{}
	for _, view := range r.fleet.Views() {
		for id := range view.Volumes {
			ids[id] = struct{}{}
		}
		for name, vol := range view.ByName {
			volumeNames[name] = struct{}{}
			if vol.GetName() != name || view.Volumes[vol.GetId()] != vol {
				r.Fatalf("by the name %s there is %v, by its id %v", name, vol, view.Volumes[vol.GetId()])
			}
		}
	}
	for _, id := range []string{"id1", "id2", "id3", "id4"} {
		got := r.fleet.ReportsOf(id)
		if on, want := slices.Sorted(maps.Keys(got)), r.holders(id, byID); !slices.Equal(on, want) {
			r.Fatalf("%s is reported by %q, by the views of %q", id, on, want)
		}
		for name, vol := range got {
			if view, _ := r.fleet.View(name); view.Volumes[id] != vol {
				r.Fatalf("of %s, %s reports %v, by its view %v", id, name, vol, view.Volumes[id])
			}
		}
	}
	for _, name := range []string{"pvc-1", "pvc-2", "pvc-3"} {
		if on, want := r.fleet.Holders(name), r.holders(name, byName); !slices.Equal(on, want) {
			r.Fatalf("%s is on %q, by the views on %q", name, on, want)
		}
	}
	if len(r.fleet.byID) != len(ids) || len(r.fleet.byName) != len(volumeNames) {
		r.Fatalf("%d ids and %d names are kept of %d and %d in the views", len(r.fleet.byID), len(r.fleet.byName), len(ids), len(volumeNames))
	}
}

func TestVolumesAreFoundAsByAWalkOverAllViews(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &reporting{T: t, fleet: New(Options{})}
		epoch := 0
		t.Repeat(map[string]func(*rapid.T){
			"a node reports all that it has": func(t *rapid.T) {
				n, s := r.connect()
				epoch++
				r.report(n, s, &lvmdv1.WatchResponse{Epoch: fmt.Sprint(epoch), Full: true, Volumes: reported.Draw(t, "volumes")})
			},
			"a node reports what changed": func(t *rapid.T) {
				n, s := r.connect()
				if !n.view.Reported() {
					t.Skip("a stream begins with all that a node has")
				}
				r.report(n, s, &lvmdv1.WatchResponse{Epoch: n.view.Epoch, Volumes: reported.Draw(t, "volumes"),
					RemovedVolumeIds: rapid.SliceOfN(reportedIDs, 0, 3).Draw(t, "removed")})
			},
			"a session that was replaced reports": func(t *rapid.T) {
				n, _ := r.connect()
				r.report(n, &uplink.Session{}, &lvmdv1.WatchResponse{Epoch: "replaced", Full: true, Volumes: reported.Draw(t, "volumes")})
			},
			"a report is refused": func(*rapid.T) {
				n, s := r.connect()
				_ = r.fleet.refuse(n, s, &ReportRefusedError{Node: n.name})
			},
			"a node disconnects":    func(*rapid.T) { r.fleet.disconnect(r.connect()) },
			"a node is forgotten":   func(t *rapid.T) { r.fleet.Forget(reportingNodes.Draw(t, "forgotten")) },
			"a node that left goes": func(*rapid.T) { n, s := r.connect(); r.fleet.disconnect(n, s); r.fleet.Forget(n.name) },
			"":                      func(*rapid.T) { r.check() },
		})
	})
}
