package scheduler

import (
	"maps"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// ClassReport is a node's report of one device class. Sizes are in bytes and not negative.
type ClassReport struct {
	// Default means that the class also has the empty name.
	Name    string
	Default bool
	// Group identifies the volume group that the class shares with others.
	Group string
	// Total is the size of the class, Available the space for volumes in sum, and MaximumVolume the
	// largest volume that fits now.
	Total, Available, MaximumVolume int64
	// A volume is at least MinimumVolume large, and a multiple of AllocationUnit.
	MinimumVolume, AllocationUnit int64
	// UnitCost is the group's space that one allocation unit of a volume takes, and VolumeCost what
	// a volume takes in addition. A UnitCost of 0 means that volumes take just their size.
	UnitCost, VolumeCost int64
}

func (c ClassReport) size(bytes int64) int64 {
	return roundUp(max(bytes, c.MinimumVolume), c.AllocationUnit)
}

// cost returns the group's space that a volume of the requested bytes takes.
func (c ClassReport) cost(bytes int64) int64 {
	bytes = c.size(bytes)
	if !c.costsMore() {
		return bytes
	}
	return saturatingAdd(saturatingMultiply(bytes/c.AllocationUnit, c.UnitCost), c.VolumeCost)
}

// worth converts taken space of the group into lost space of the class: whole units, rounded up.
func (c ClassReport) worth(taken int64) int64 {
	if !c.costsMore() {
		return taken
	}
	return saturatingMultiply(roundUp(taken, c.UnitCost)/c.UnitCost, c.AllocationUnit)
}

// freeSpace returns the space to publish after taken bytes of the group were reserved since the
// report.
func (c ClassReport) freeSpace(taken int64) FreeSpace {
	less := c.worth(taken)
	return FreeSpace{
		Total:         c.Total,
		Available:     max(0, c.Available-less),
		MaximumVolume: c.largestVolume(min(c.MaximumVolume, c.Available) - less),
	}
}

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
	// Epoch and Generation order a node's reports: within an epoch, the higher generation is later.
	// An empty epoch counts as the latest.
	Epoch      string
	Generation uint64
	Classes    []ClassReport
	// Volumes holds the names of the volumes that Classes account for. The ledger keeps the map and
	// only reads it.
	Volumes map[string]struct{}
}

// Reservation is space that a claim will take.
type Reservation struct {
	// Claim is the claim's UID and the reservation's key.
	Claim string
	// Volume is the name in the node's reports.
	Volume string
	// An empty Class means the node's default.
	Node, Class string
	// Bytes is the requested size, before rounding.
	Bytes int64
	// Deadline is when the reservation lapses if nothing else ends it.
	Deadline time.Time
}

// FreeSpace is the space for new claims, in bytes.
type FreeSpace struct {
	// Total is the size of the class, whatever its use.
	Total int64
	// Available is the space for new volumes in sum.
	Available int64
	// MaximumVolume is the largest volume to publish. Every reservation lowers it, because each may
	// take from the same stretch of space.
	MaximumVolume int64
}

// Besides deducts the overhead of a volume that takes the given bytes in addition to its size.
func (r FreeSpace) Besides(bytes int64) FreeSpace {
	r.Available, r.MaximumVolume = max(0, r.Available-bytes), max(0, r.MaximumVolume-bytes)
	return r
}

func (r FreeSpace) fits(bytes int64) bool { return r.MaximumVolume >= bytes && r.Available >= bytes }

// Ledger holds reports and reservations. Its methods are atomic and may be called concurrently.
//
// It keeps reservations as a sum per node and group, so that computing free space takes the same
// time however many claims wait.
type Ledger struct {
	now func() time.Time

	mu     sync.Mutex
	nodes  map[string]*node
	claims map[string]*entry // by claim UID
	// lapsed holds the nodes for the next Expire.
	lapsed map[string]struct{}
	// held holds the device classes that are closed to new placements, by node; an empty class
	// means the whole node.
	held map[string]map[string]struct{}
}

// node exists while it has a report or a reservation.
type node struct {
	report   NodeReport
	reported bool
	claims   map[string]*entry
	// reserved sums the charges of claims by group.
	reserved map[string]*sum
	// soonest is no later than the first deadline of claims.
	soonest time.Time
}

// entry is a reservation and its charge in bytes of its group. It is not charged while its class is
// unknown on its node.
type entry struct {
	Reservation
	group   string
	bytes   int64
	charged bool
}

// NewLedger returns an empty ledger that gets the time from now.
func NewLedger(now func() time.Time) *Ledger {
	return &Ledger{now: now, nodes: map[string]*node{}, claims: map[string]*entry{}, lapsed: map[string]struct{}{}, held: map[string]map[string]struct{}{}}
}

// Report replaces the report of a node and atomically ends the reservations of the volumes that it
// counts. It ignores a report older than the last one.
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

// Forget drops the report of a node. Reservations on it stay until they end by themselves: the node
// may come back.
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

// Hold makes a device class of a node, or the whole node if class is empty, seem full to new
// placements until it is called with false. Reservations stay. The node need not have reported.
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

// holds must be called with l.mu held.
func (l *Ledger) holds(name, class string) bool {
	_, whole := l.held[name][""]
	_, held := l.held[name][class]
	return whole || held
}

// Reserve creates, renews, resizes or moves the reservation of a claim. If the node's report
// already counts the volume, it ends the claim's reservation instead. It returns the nodes whose
// free space changed.
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
	l.nodes[r.Node] = n // drop may have removed the node with its last reservation
	if len(n.claims) == 0 || r.Deadline.Before(n.soonest) {
		n.soonest = r.Deadline
	}
	n.claims[r.Claim] = e
	n.charge(e)
	return changed
}

// Release ends the reservation of a claim. It returns the node whose free space grew, or false if
// the claim had none.
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

// Expire ends the reservations whose deadline has passed. It returns the nodes whose free space
// grew for that reason since the last call, once each.
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

// Reservations returns the number of open reservations.
func (l *Ledger) Reservations() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.claims)
}

// FreeSpace returns the free space of a class of a node, or false if the node did not report or
// lacks the class. An empty class is the default.
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

// Candidates returns the nodes that have the class and at least the given free bytes for one
// volume, in no particular order. With 0 it returns all nodes that have the class.
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

// candidate must be called with l.mu held.
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

func (l *Ledger) node(name string) *node {
	n := l.nodes[name]
	if n == nil {
		n = &node{claims: map[string]*entry{}, reserved: map[string]*sum{}}
		l.nodes[name] = n
	}
	return n
}

func (l *Ledger) tidy(name string, n *node) {
	if !n.reported && len(n.claims) == 0 {
		delete(l.nodes, name)
	}
}

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

// roundUp returns the smallest multiple of unit that is at least n. A unit up to 1 rounds nothing.
// It saturates instead of overflowing.
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

// saturatingMultiply requires factors that are not negative.
func saturatingMultiply(a, b int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high > 0 || low > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low)
}

// sum has 128 bits, so that it never overflows and whatever was added can be subtracted.
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

func (s *sum) saturated() int64 {
	if s.high > 0 || s.low > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(s.low)
}
