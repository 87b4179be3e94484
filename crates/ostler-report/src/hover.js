
(function () {
  'use strict';
  var tip = document.getElementById('tip');
  document.querySelectorAll('.hit').forEach(function (hit) {
    var title = hit.querySelector('title');
    if (title) {
      hit.setAttribute('data-tip', title.textContent);
      hit.setAttribute('aria-label', title.textContent);
      title.remove();
    }
  });
  document.addEventListener('pointermove', function (event) {
    var hit = event.target.closest ? event.target.closest('.hit') : null;
    tip.hidden = !hit;
    if (!hit) { return; }
    tip.textContent = hit.getAttribute('data-tip');
    var right = document.documentElement.clientWidth - tip.offsetWidth - 12;
    var below = document.documentElement.clientHeight - tip.offsetHeight - 12;
    tip.style.left = Math.max(4, Math.min(event.clientX + 16, right)) + 'px';
    tip.style.top = Math.max(4, Math.min(event.clientY + 16, below)) + 'px';
  });
})();
