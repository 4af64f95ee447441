package rlqs

// ReportBytes returns the memory charged for a report.
var ReportBytes = reportBytes

// Memory returns the memory charged to clients, in bytes.
func (s *Service) Memory() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.memory.Used()
}
