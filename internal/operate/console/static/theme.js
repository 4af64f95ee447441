// Before anything is drawn: the theme that was chosen, if one was, and whether buttons can copy.
if (navigator.clipboard) document.documentElement.classList.add("can-copy");
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* storage is disabled: use the system's theme */ }
