package lvmd

import "go.etcd.io/bbolt"

// crash is called between any two effects of an operation, with a name for
// the place. Tests end an lvmd's life there.
func (s *Service) crash(point string) {
	if s.crashPoint != nil {
		s.crashPoint(point)
	}
}

// database is the journal's file. Each of its commits is an effect, with a
// place to die before and after it.
type database struct {
	*bbolt.DB
	crash func(point string)
}

// Update does something in a transaction, and returns when it is durable.
func (d *database) Update(what func(*bbolt.Tx) error) error {
	if d.crash == nil {
		return d.DB.Update(what)
	}
	d.crash("journal: before a commit")
	err := d.DB.Update(what)
	d.crash("journal: after a commit")
	return err
}
