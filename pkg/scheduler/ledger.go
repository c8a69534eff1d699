package scheduler

import (
	"sync"
	"time"
)

// ClassReport is what a node says about one of its device classes. Sizes are
// in bytes and not negative.
type ClassReport struct {
	// Name is the device class; Default says that it stands for the empty name.
	Name    string
	Default bool
	// Group identifies the volume group whose space the class draws on.
	Group string
	// Total, Available and MaximumVolume are what there is, what volumes may
	// take in sum, and the largest volume that can be made now.
	Total, Available, MaximumVolume int64
	// MinimumVolume and AllocationUnit say what a small request really takes.
	MinimumVolume, AllocationUnit int64
}

// NodeReport is the whole state of one node.
type NodeReport struct {
	Classes []ClassReport
	// Volumes holds the names of the volumes that Classes account for. The
	// ledger keeps the map and only reads it.
	Volumes map[string]struct{}
}

// Reservation is room that a claim will take.
type Reservation struct {
	// Claim is the claim's UID and the reservation's key.
	Claim string
	// Volume is the name under which the node will report the volume.
	Volume string
	// Node and Class say where; an empty Class is the node's default one.
	Node, Class string
	// Bytes is the size asked for, before rounding.
	Bytes int64
	// Deadline is when the reservation lapses if nothing else ended it.
	Deadline time.Time
}

// Room is what may be promised to new claims, in bytes.
type Room struct {
	// Total is the size of the class; it does not change with use.
	Total int64
	// Available is what new volumes may take in sum.
	Available int64
	// MaximumVolume is the largest volume to promise. It is kept low when
	// reservations are open: each might take from the same stretch of space.
	MaximumVolume int64
}

// Ledger holds reports and reservations. All methods may be called
// concurrently; each is atomic.
type Ledger struct {
	now func() time.Time

	mu     sync.Mutex
	nodes  map[string]NodeReport
	claims map[string]Reservation            // by claim
	onNode map[string]map[string]Reservation // by node, then claim
}

// NewLedger makes an empty ledger that asks now for the time.
func NewLedger(now func() time.Time) *Ledger {
	return &Ledger{
		now:    now,
		nodes:  map[string]NodeReport{},
		claims: map[string]Reservation{},
		onNode: map[string]map[string]Reservation{},
	}
}

// Report replaces what is known of a node and, in the same instant, ends the
// reservations of the volumes that the report counts.
func (l *Ledger) Report(node string, r NodeReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes[node] = r
	for claim, res := range l.onNode[node] {
		if _, counted := r.Volumes[res.Volume]; counted {
			l.drop(claim)
		}
	}
}

// Forget drops what a node reported. Reservations on it stay until they end
// by themselves: the node may come back.
func (l *Ledger) Forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.nodes, node)
}

// Reserve makes, renews, resizes or moves the reservation of a claim. Where
// the node's report already counts the volume, the claim needs none, and one
// that it had elsewhere ends. It returns the nodes whose room changed.
func (l *Ledger) Reserve(r Reservation) (changed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, had := l.claims[r.Claim]
	_, counted := l.nodes[r.Node].Volumes[r.Volume]
	if had && (counted || old.Node != r.Node) {
		l.drop(r.Claim)
		changed = append(changed, old.Node)
		had = false
	}
	if counted {
		return changed
	}
	if !had || old.Bytes != r.Bytes || old.Class != r.Class {
		changed = append(changed, r.Node)
	}
	l.claims[r.Claim] = r
	if l.onNode[r.Node] == nil {
		l.onNode[r.Node] = map[string]Reservation{}
	}
	l.onNode[r.Node][r.Claim] = r
	return changed
}

// Release ends the reservation of a claim. It returns the node whose room
// grew, or false when the claim had none.
func (l *Ledger) Release(claim string) (node string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.claims[claim]
	if ok {
		l.drop(claim)
	}
	return r.Node, ok
}

// ReleaseAll ends every reservation. It is for those who are about to derive
// them again.
func (l *Ledger) ReleaseAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.claims)
	clear(l.onNode)
}

// Expire ends the reservations whose deadline has passed and returns the
// nodes whose room grew.
func (l *Ledger) Expire() (changed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for claim, r := range l.claims {
		if now.After(r.Deadline) {
			l.drop(claim)
			changed = append(changed, r.Node)
		}
	}
	return changed
}

// Reservations is how many are open.
func (l *Ledger) Reservations() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.claims)
}

// Room tells what a class of a node may promise, and false when the node did
// not report or does not have the class. An empty class is the default one.
func (l *Ledger) Room(node, class string) (Room, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.room(node, class)
}

// Candidates returns every node that has the class, with its room, in no
// particular order.
func (l *Ledger) Candidates(class string) []Candidate {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Candidate
	for node, report := range l.nodes {
		if room, ok := l.room(node, class); ok {
			out = append(out, Candidate{Node: node, Room: room, Volumes: len(report.Volumes) + len(l.onNode[node])})
		}
	}
	return out
}

func (l *Ledger) room(node, class string) (Room, bool) {
	report, ok := l.nodes[node]
	if !ok {
		return Room{}, false
	}
	c, ok := findClass(report.Classes, class)
	if !ok {
		return Room{}, false
	}
	now := l.now()
	var reserved int64
	for _, r := range l.onNode[node] {
		rc, ok := findClass(report.Classes, r.Class)
		if ok && rc.Group == c.Group && !now.After(r.Deadline) {
			reserved = saturatingAdd(reserved, roundUp(max(r.Bytes, rc.MinimumVolume), rc.AllocationUnit))
		}
	}
	return Room{
		Total:         c.Total,
		Available:     max(0, c.Available-reserved),
		MaximumVolume: max(0, min(c.MaximumVolume, c.Available)-reserved),
	}, true
}

func (l *Ledger) drop(claim string) {
	node := l.claims[claim].Node
	delete(l.claims, claim)
	delete(l.onNode[node], claim)
	if len(l.onNode[node]) == 0 {
		delete(l.onNode, node)
	}
}

func findClass(classes []ClassReport, name string) (ClassReport, bool) {
	for _, c := range classes {
		if c.Name == name || name == "" && c.Default {
			return c, true
		}
	}
	return ClassReport{}, false
}

// roundUp returns the smallest multiple of unit that holds n; a unit of zero
// or less rounds nothing. It saturates instead of overflowing.
func roundUp(n, unit int64) int64 {
	if unit <= 1 || n%unit == 0 {
		return n
	}
	return saturatingAdd(n-n%unit, unit)
}

func saturatingAdd(a, b int64) int64 {
	const most = 1<<63 - 1
	if a > most-b {
		return most
	}
	return a + b
}
