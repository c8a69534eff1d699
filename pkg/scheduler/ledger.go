package scheduler

import (
	"maps"
	"math"
	"math/bits"
	"slices"
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
	// UnitCost is what an allocation unit of a volume takes of the group, and
	// VolumeCost what a volume takes besides. A UnitCost of 0 means that volumes
	// take just their size.
	UnitCost, VolumeCost int64
}

// size is how large a volume becomes of which so many bytes are asked for.
func (c ClassReport) size(bytes int64) int64 {
	return roundUp(max(bytes, c.MinimumVolume), c.AllocationUnit)
}

// cost is what such a volume takes of its group.
func (c ClassReport) cost(bytes int64) int64 {
	bytes = c.size(bytes)
	if !c.costsMore() {
		return bytes
	}
	return saturatingAdd(saturatingMultiply(bytes/c.AllocationUnit, c.UnitCost), c.VolumeCost)
}

// worth is how much less of the class there is when so much of its group is
// taken: whole units, rounded up.
func (c ClassReport) worth(taken int64) int64 {
	if !c.costsMore() {
		return taken
	}
	return saturatingMultiply(roundUp(taken, c.UnitCost)/c.UnitCost, c.AllocationUnit)
}

// freeSpace is what may be published of the class when so much of its group is taken since it
// was reported.
func (c ClassReport) freeSpace(taken int64) FreeSpace {
	less := c.worth(taken)
	return FreeSpace{
		Total:         c.Total,
		Available:     max(0, c.Available-less),
		MaximumVolume: c.largestVolume(min(c.MaximumVolume, c.Available) - less),
	}
}

// largestVolume is the largest volume that fits so much free space.
func (c ClassReport) largestVolume(free int64) int64 {
	if c.AllocationUnit > 1 {
		free -= free % c.AllocationUnit
	}
	if free < c.MinimumVolume {
		return 0
	}
	return max(0, free)
}

func (c ClassReport) costsMore() bool {
	return c.AllocationUnit > 0 && c.UnitCost > 0 && (c.UnitCost != c.AllocationUnit || c.VolumeCost != 0)
}

// NodeReport is the whole state of one node.
type NodeReport struct {
	// Epoch and Generation order a node's reports: of one epoch, the higher
	// generation is the later state. An empty epoch is always taken for the
	// latest.
	Epoch      string
	Generation uint64
	Classes    []ClassReport
	// Volumes holds the names of the volumes that Classes account for. The
	// ledger keeps the map and only reads it.
	Volumes map[string]struct{}
}

// Reservation is space that a claim will take.
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

// FreeSpace is what may be reserved for new claims, in bytes.
type FreeSpace struct {
	// Total is the size of the class; it does not change with use.
	Total int64
	// Available is what new volumes may take in sum.
	Available int64
	// MaximumVolume is the largest volume to publish. It is kept low when
	// reservations are open: each might take from the same stretch of space.
	MaximumVolume int64
}

// Besides is what of free space can be had as volumes of which each takes so many bytes
// besides its own size.
func (r FreeSpace) Besides(bytes int64) FreeSpace {
	r.Available, r.MaximumVolume = max(0, r.Available-bytes), max(0, r.MaximumVolume-bytes)
	return r
}

// fits reports whether one volume of so many bytes may be reserved.
func (r FreeSpace) fits(bytes int64) bool { return r.MaximumVolume >= bytes && r.Available >= bytes }

// Ledger holds reports and reservations. All methods may be called
// concurrently; each is atomic.
//
// What is reserved is kept as a sum per node and group, so that free space costs the
// same however many claims wait.
type Ledger struct {
	now func() time.Time

	mu     sync.Mutex
	nodes  map[string]*node
	claims map[string]*entry // by claim
	// lapsed are nodes whose free space grew because reservations were found to be
	// past their deadline, and that Expire has yet to return.
	lapsed map[string]struct{}
	// held has the device classes in which nothing new is to be placed, by node;
	// an empty class stands for all of the node.
	held map[string]map[string]struct{}
}

// node is what is known of one node. It exists while there is a report or a
// reservation.
type node struct {
	report   NodeReport
	reported bool
	claims   map[string]*entry
	// reserved is what the charges of claims come to, by group.
	reserved map[string]*sum
	// soonest is not after the first deadline of claims.
	soonest time.Time
}

// entry is a reservation and what it was charged, in bytes of its group: nothing
// while its class is unknown on its node.
type entry struct {
	Reservation
	group   string
	bytes   int64
	charged bool
}

// NewLedger makes an empty ledger that asks now for the time.
func NewLedger(now func() time.Time) *Ledger {
	return &Ledger{now: now, nodes: map[string]*node{}, claims: map[string]*entry{}, lapsed: map[string]struct{}{}, held: map[string]map[string]struct{}{}}
}

// Report replaces what is known of a node and, in the same instant, ends the
// reservations of the volumes that the report counts. A report that is older
// than the last one is ignored.
func (l *Ledger) Report(name string, r NodeReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.node(name)
	if n.reported && r.Epoch != "" && r.Epoch == n.report.Epoch && r.Generation < n.report.Generation {
		return
	}
	n.report, n.reported = r, true
	clear(n.reserved)
	for claim, e := range n.claims {
		e.charged = false
		if _, counted := r.Volumes[e.Volume]; counted {
			l.drop(claim)
		} else {
			n.charge(e)
		}
	}
}

// Forget drops what a node reported. Reservations on it stay until they end
// by themselves: the node may come back.
func (l *Ledger) Forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[name]
	if n == nil {
		return
	}
	n.report, n.reported = NodeReport{}, false
	clear(n.reserved)
	for _, e := range n.claims {
		e.charged = false
	}
	l.tidy(name, n)
}

// Hold makes a device class of a node, or with an empty class all of the node, seem
// full to new placements, until it is called with false. What is reserved there stays
// reserved. A node may be held that has not reported.
func (l *Ledger) Hold(name, class string, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held {
		if l.held[name] == nil {
			l.held[name] = map[string]struct{}{}
		}
		l.held[name][class] = struct{}{}
		return
	}
	if delete(l.held[name], class); len(l.held[name]) == 0 {
		delete(l.held, name)
	}
}

// holds reports whether nothing is to be placed in a class of a node. The caller
// holds l.mu.
func (l *Ledger) holds(name, class string) bool {
	_, whole := l.held[name][""]
	_, held := l.held[name][class]
	return whole || held
}

// Reserve makes, renews, resizes or moves the reservation of a claim. Where
// the node's report already counts the volume, the claim needs none, and one
// that it had elsewhere ends. It returns the nodes whose free space changed.
func (l *Ledger) Reserve(r Reservation) (changed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.node(r.Node)
	defer l.tidy(r.Node, n)
	old, had := l.claims[r.Claim]
	_, counted := n.report.Volumes[r.Volume]
	if had && (counted || old.Node != r.Node) {
		changed = append(changed, old.Node)
	}
	if !counted && (!had || old.Node != r.Node || old.Bytes != r.Bytes || old.Class != r.Class) {
		changed = append(changed, r.Node)
	}
	if had {
		l.drop(r.Claim)
	}
	if counted {
		return changed
	}
	e := &entry{Reservation: r}
	l.claims[r.Claim] = e
	l.nodes[r.Node] = n // drop may have been of the node's last reservation
	if len(n.claims) == 0 || r.Deadline.Before(n.soonest) {
		n.soonest = r.Deadline
	}
	n.claims[r.Claim] = e
	n.charge(e)
	return changed
}

// Release ends the reservation of a claim. It returns the node whose free space
// grew, or false when the claim had none.
func (l *Ledger) Release(claim string) (node string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.claims[claim]
	if !ok {
		return "", false
	}
	l.drop(claim)
	return e.Node, true
}

// ReleaseAll ends every reservation, before the controller derives them again.
func (l *Ledger) ReleaseAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for claim := range l.claims {
		l.drop(claim)
	}
	clear(l.lapsed)
}

// Expire ends the reservations whose deadline has passed and returns the
// nodes whose free space grew since it was last called, for that reason, once each.
func (l *Ledger) Expire() (changed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range l.nodes {
		l.lapse(name, n)
	}
	changed = slices.Sorted(maps.Keys(l.lapsed))
	clear(l.lapsed)
	return changed
}

// Reservations is how many are open.
func (l *Ledger) Reservations() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.claims)
}

// FreeSpace is what a class of a node may reserve, and false when the node did
// not report or does not have the class. An empty class is the default one.
func (l *Ledger) FreeSpace(name, class string) (FreeSpace, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[name]
	if n == nil {
		return FreeSpace{}, false
	}
	c, ok := l.candidate(name, n, class)
	return c.FreeSpace, ok
}

// Candidates returns the nodes that have the class and at least so many bytes free for one volume, with
// their free space, in no particular order. For 0 bytes these are all nodes that have the class.
func (l *Ledger) Candidates(class string, least int64) []Candidate {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Candidate
	for name, n := range l.nodes {
		if c, ok := l.candidate(name, n, class); ok && c.FreeSpace.fits(least) {
			out = append(out, c)
		}
	}
	return out
}

// candidate returns a node as one of those that have the class, or false. The caller holds l.mu.
func (l *Ledger) candidate(name string, n *node, class string) (Candidate, bool) {
	if !n.reported {
		return Candidate{}, false
	}
	c, ok := findClass(n.report.Classes, class)
	if !ok {
		return Candidate{}, false
	}
	l.lapse(name, n)
	var taken int64
	if s := n.reserved[c.Group]; s != nil {
		taken = s.saturated()
	}
	free, held := c.freeSpace(taken), l.holds(name, c.Name)
	if held {
		free.Available, free.MaximumVolume = 0, 0
	}
	return Candidate{Node: name, FreeSpace: free, Volumes: len(n.report.Volumes) + len(n.claims), Held: held}, true
}

// node returns the node, made if need be.
func (l *Ledger) node(name string) *node {
	n := l.nodes[name]
	if n == nil {
		n = &node{claims: map[string]*entry{}, reserved: map[string]*sum{}}
		l.nodes[name] = n
	}
	return n
}

// tidy forgets a node of which nothing is known.
func (l *Ledger) tidy(name string, n *node) {
	if !n.reported && len(n.claims) == 0 {
		delete(l.nodes, name)
	}
}

// lapse ends the node's reservations whose deadline has passed.
func (l *Ledger) lapse(name string, n *node) {
	now := l.now()
	if len(n.claims) == 0 || !now.After(n.soonest) {
		return
	}
	var soonest time.Time
	for claim, e := range n.claims {
		switch {
		case now.After(e.Deadline):
			l.drop(claim)
			l.lapsed[name] = struct{}{}
		case soonest.IsZero() || e.Deadline.Before(soonest):
			soonest = e.Deadline
		}
	}
	n.soonest = soonest
}

func (l *Ledger) drop(claim string) {
	e := l.claims[claim]
	n := l.nodes[e.Node]
	if e.charged {
		n.reserved[e.group].sub(e.bytes)
	}
	delete(l.claims, claim)
	delete(n.claims, claim)
	l.tidy(e.Node, n)
}

// charge adds a reservation to what its group owes, if the node has its class.
func (n *node) charge(e *entry) {
	c, ok := findClass(n.report.Classes, e.Class)
	if !ok {
		return
	}
	e.group, e.bytes, e.charged = c.Group, c.cost(e.Bytes), true
	s := n.reserved[e.group]
	if s == nil {
		s = &sum{}
		n.reserved[e.group] = s
	}
	s.add(e.bytes)
}

func findClass(classes []ClassReport, name string) (ClassReport, bool) {
	for i := range classes { // copying each costs more than comparing
		if c := &classes[i]; c.Name == name || name == "" && c.Default {
			return *c, true
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

// saturatingMultiply is for factors that are not negative.
func saturatingMultiply(a, b int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high > 0 || low > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low)
}

// sum adds up sizes without ever overflowing, so that what was added can be
// taken away again.
type sum struct{ high, low uint64 }

func (s *sum) add(n int64) {
	var carry uint64
	s.low, carry = bits.Add64(s.low, uint64(max(0, n)), 0)
	s.high += carry
}

func (s *sum) sub(n int64) {
	var borrow uint64
	s.low, borrow = bits.Sub64(s.low, uint64(max(0, n)), 0)
	s.high -= borrow
}

// saturated is the sum, or the largest int64 when it is larger.
func (s *sum) saturated() int64 {
	if s.high > 0 || s.low > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(s.low)
}
